"""The words of FineryConfig: each field's type, default and allowed names, as plain data.

One table for the configuration, for the arithmetic of `finery plan`, and for the check of a recipe before anything
heavy is imported. A default of None stands for "what is usual": see each field in `configuration_finery`.
"""

FAMILIES = ("encoder", "decoder", "encoder-decoder")
POSITIONS = ("learned", "sinusoidal", "rotary", "alibi", "relative", "none")
NORM_TYPES = ("layer_norm", "rms_norm")
NORM_POSITIONS = ("post", "pre", "sandwich")
ATTENTION_SCORINGS = ("scaled_dot_product", "dot_product", "general", "additive", "cosine")
ATTENTION_PATTERNS = ("full", "causal", "sliding_window", "linear")
INITIALIZERS = ("normal", "truncated_normal", "xavier_uniform", "fan_in")
ACTIVATIONS = (
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh", "gelu_pytorch_tanh",
    "gelu_tanh", "hardswish", "laplace", "leaky_relu", "linear", "mish", "quick_gelu", "relu", "relu2", "relu6",
    "sigmoid", "silu", "sqrtsoftplus", "swish", "tanh",
)  # fmt: skip
"""transformers' activations that hold no parameters of their own (PReLU and xIELU do, and would not be counted);
`gelu_tanh` is our name of the original formula, `gelu_pytorch_tanh` there."""

CHOICES: dict[str, tuple[str, ...]] = {
    "family": FAMILIES,
    "position": POSITIONS,
    "norm_type": NORM_TYPES,
    "norm_position": NORM_POSITIONS,
    "attention_scoring": ATTENTION_SCORINGS,
    "attention_pattern": ATTENTION_PATTERNS,
    "initializer": INITIALIZERS,
    "hidden_act": ACTIVATIONS,
}
"""Allowed texts of the fields that are names."""


def _names(field: str) -> str:
    return "|".join(f"={name}" for name in CHOICES[field])


WORDS: dict[str, tuple[str, object]] = {
    "family": (_names("family"), "encoder"),
    "vocab_size": ("int", 30522),
    "hidden_size": ("int", 768),
    "num_hidden_layers": ("int", 12),
    "num_decoder_layers": ("int|null", None),
    "num_attention_heads": ("int", 12),
    "num_key_value_heads": ("int|null", None),
    "head_dim": ("int|null", None),
    "intermediate_size": ("int", 3072),
    "embedding_size": ("int|null", None),
    "max_position_embeddings": ("int", 512),
    "type_vocab_size": ("int|null", None),
    "position": (_names("position"), "learned"),
    "rope_theta": ("float", 10000.0),
    "local_rope_theta": ("float|null", None),
    "relative_attention_num_buckets": ("int", 32),
    "relative_attention_max_distance": ("int", 128),
    "norm_type": (_names("norm_type"), "layer_norm"),
    "norm_position": (_names("norm_position"), "post"),
    "norm_bias": ("bool", True),
    "embedding_norm": ("bool|null", None),
    "layer_norm_eps": ("float", 1e-12),
    "attention_scoring": (_names("attention_scoring"), "scaled_dot_product"),
    "attention_pattern": (_names("attention_pattern") + "|null", None),
    "sliding_window": ("int|null", None),
    "global_attn_every_n_layers": ("int|null", None),
    "qk_norm": ("bool", False),
    "attention_bias": ("bool", True),
    "hidden_act": (_names("hidden_act"), "gelu"),
    "is_gated_act": ("bool", False),
    "mlp_bias": ("bool", True),
    "lm_head_bias": ("bool|null", None),
    "tie_word_embeddings": ("bool", True),
    "scale_embedding": ("bool|null", None),
    "scale_logits": ("bool", False),
    "bidirectional_decoder": ("bool", False),
    "length_prediction": ("bool", False),
    "sparse_prediction": ("bool", False),
    "hidden_dropout_prob": ("float", 0.1),
    "embedding_dropout_prob": ("float|null", None),
    "attention_probs_dropout_prob": ("float", 0.1),
    "activation_dropout_prob": ("float", 0.0),
    "layerdrop": ("float", 0.0),
    "classifier_dropout": ("float|null", None),
    "initializer": (_names("initializer"), "normal"),
    "initializer_range": ("float", 0.02),
    "scale_residual_init": ("bool", False),
    "use_cache": ("bool", True),
    "pad_token_id": ("int|null", 0),
    "bos_token_id": ("int|null", None),
    "eos_token_id": ("int|null", None),
    "decoder_start_token_id": ("int|null", None),
}
"""Each field's type, in the words of `pipelines.fields.kinds`, and its default."""

KINDS = {name: kind for name, (kind, _) in WORDS.items()}
DEFAULTS = {name: default for name, (_, default) in WORDS.items()}


def completed(fields: dict[str, object]) -> dict[str, object]:
    """`fields` with every default filled in, and what is "usual" written out for the family."""
    full = {**DEFAULTS, **fields}
    family, width, heads = full["family"], full["hidden_size"], full["num_attention_heads"]
    usual = {
        "num_decoder_layers": full["num_hidden_layers"],
        "num_key_value_heads": heads,
        "head_dim": width // heads if isinstance(width, int) and isinstance(heads, int) and heads > 0 else None,
        "embedding_size": width,
        "type_vocab_size": 2 if family == "encoder" else 0,
        "embedding_norm": family == "encoder",
        "attention_pattern": "causal" if family == "decoder" else "full",
        "lm_head_bias": family == "encoder",
        "scale_embedding": full["position"] == "sinusoidal",
        "embedding_dropout_prob": full["hidden_dropout_prob"],
        "local_rope_theta": full["rope_theta"],
    }
    return full | {name: value for name, value in usual.items() if full[name] is None}
