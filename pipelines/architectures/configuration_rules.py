"""The fields of a FineryConfig as plain data, and the rules that their values keep: no torch, no transformers.

One table of types, defaults and allowed names serves the configuration, the arithmetic of `finery plan` and the check
of a recipe before anything heavy is imported. A default of None stands for "what is usual": see each field in
`configuration_finery`. The configuration's constructor refuses what the rules find; a recipe is refused with the same
sentences.
"""

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

FAMILIES = ("encoder", "decoder", "encoder-decoder")
POSITIONS = ("learned", "sinusoidal", "rotary", "alibi", "relative", "none")
NORM_TYPES = ("layer_norm", "rms_norm")
NORM_POSITIONS = ("post", "pre", "sandwich")
ATTENTION_SCORINGS = ("scaled_dot_product", "dot_product", "general", "additive", "cosine")
ATTENTION_PATTERNS = ("full", "causal", "sliding_window", "linear")
POOLINGS = ("first", "mean")
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
    "classifier_pooling": POOLINGS,
    "initializer": INITIALIZERS,
    "hidden_act": ACTIVATIONS,
}
"""Allowed texts of the fields that are names."""


def _names(field: str) -> str:
    return "|".join(f"={name}" for name in CHOICES[field])


FIELDS: dict[str, tuple[str, object]] = {
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
    "classifier_pooling": (_names("classifier_pooling"), "first"),
    "initializer": (_names("initializer"), "normal"),
    "initializer_range": ("float", 0.02),
    "scale_residual_init": ("bool", False),
    "use_cache": ("bool", True),
    "pad_token_id": ("int|null", 0),
    "bos_token_id": ("int|null", None),
    "eos_token_id": ("int|null", None),
    "decoder_start_token_id": ("int|null", None),
}
"""Each field's type, as `pipelines.core` spells types, and its default."""

KINDS = {name: kind for name, (kind, _) in FIELDS.items()}
DEFAULTS = {name: default for name, (_, default) in FIELDS.items()}


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


Config = Mapping[str, Any]
"""A config's fields by name."""
Finding = tuple[tuple[str, ...], str]
"""The fields that a mistake is about, the one to change first, and what to say. About one field, the sentence goes on
after its name ("is 0, must be at least 1"); about several, it is complete."""

AT_LEAST_ONE = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_decoder_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "intermediate_size", "embedding_size", "max_position_embeddings",
    "sliding_window", "global_attn_every_n_layers", "relative_attention_max_distance",
)  # fmt: skip
MOST = {"num_hidden_layers": 10_000, "num_decoder_layers": 10_000}
"""Where less than LARGEST is already beyond any use."""
LARGEST = 2**31 - 1
FEWEST_BUCKETS = 4
"""Each direction of an encoder needs one bucket for its own place or a near one and one for all that is farther."""
PROBABILITIES = (
    "hidden_dropout_prob",
    "embedding_dropout_prob",
    "attention_probs_dropout_prob",
    "activation_dropout_prob",
    "layerdrop",
    "classifier_dropout",
)
POSITIVE = ("initializer_range", "layer_norm_eps", "rope_theta", "local_rope_theta")
TOKENS = {
    "pad_token_id": "padding token",
    "bos_token_id": "token that begins a text",
    "eos_token_id": "token that ends a text",
    "decoder_start_token_id": "token that a decoder starts from",
}
NULLS = {
    "classifier_dropout": "to use hidden_dropout_prob",
    "embedding_dropout_prob": "to use hidden_dropout_prob",
    "num_decoder_layers": "for as many as the encoder has",
    "num_key_value_heads": "for as many as num_attention_heads",
    "head_dim": "for hidden_size / num_attention_heads",
    "embedding_size": "to use hidden_size",
}
"""What null means, where a hint is of use."""


def contradictions(fields: Config) -> list[str]:
    """One sentence for each mistake in `fields`: what was given, what is allowed, what to do. Empty if all is well."""
    return [f"{keys[0]} {sentence}" if len(keys) == 1 else sentence for keys, sentence in findings(fields)]


def findings(fields: Config) -> list[Finding]:
    """Every mistake in `fields`. What contradicts each other is only looked for among fields that are fine alone.

    Config that are absent are not judged, so a recipe's overrides can be checked alone or merged with a preset.
    """
    single = [((name,), sentence) for name, value in fields.items() if (sentence := _field(name, value))]
    return single or [finding for rule in RULES for finding in rule(fields)]


WAVES = 0.5**0.5
"""Root mean square of the sines and cosines of a position."""


def doubts(fields: Config) -> list[str]:
    """One sentence for each choice in `fields`, a config's own, that is allowed and is known to learn badly."""
    full = completed(dict(fields))
    spread = {"xavier_uniform": full["hidden_size"] ** -0.5, "fan_in": 1.0}.get(
        full["initializer"], full["initializer_range"]
    )
    words = spread * (full["embedding_size"] ** 0.5 if full["scale_embedding"] else 1.0)
    if full["position"] != "sinusoidal" or words >= WAVES / 2:
        return []
    return [
        f"position sinusoidal adds waves of {WAVES:.2f} (root mean square) to word embeddings that "
        f"start at {words:.2f}, "
        "which drowns the words at first; use initializer: xavier_uniform, which starts embeddings at "
        "hidden_size^-0.5 as Vaswani et al. 2017 do, or a larger initializer_range"
    ]


def _field(name: str, value: object) -> str | None:
    """What is wrong with one field, looked at alone."""
    kind = KINDS.get(name, "").split("|")
    if value is None and "null" in kind:
        return None
    if name in CHOICES and value not in CHOICES[name]:
        close = get_close_matches(str(value), CHOICES[name], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"is {value!r}, must be one of: {', '.join(CHOICES[name])}{hint}"
    null = f", or null {NULLS[name]}" if name in NULLS else ""
    if name in AT_LEAST_ONE:
        return _outside(value, 1, null, MOST.get(name, LARGEST))
    if name == "type_vocab_size":
        return _outside(value, 0, "; 0 means that the model knows no segments")
    if name == "relative_attention_num_buckets":
        return _outside(value, FEWEST_BUCKETS, "")
    if name in PROBABILITIES and not (_number(value) and 0 <= value < 1):
        return f"is {value!r}, must be a probability of at least 0 and below 1{null}"
    if name in POSITIVE and not (_number(value) and value > 0):
        return f"is {value!r}, must be a number above 0"
    if "bool" in kind and not isinstance(value, bool):
        return f"is {value!r}, must be true or false"
    if name in TOKENS and not (_whole(value) and value >= 0):
        return f"is {value!r}, must be the id of a token, or null if the vocabulary has no {TOKENS[name]}"
    return None


def _outside(value: object, fewest: int, hint: str, most: int = LARGEST) -> str | None:
    if not _whole(value):
        return f"is {value!r}, must be a whole number of at least {fewest}{hint}"
    if value > most:
        return f"is {value}, must be at most {most}"
    return f"is {value}, must be at least {fewest}{hint}" if value < fewest else None


def _heads(fields: Config) -> Iterator[Finding]:
    """Heads that do not divide, and sizes that rotation or sines cannot pair."""
    width, heads, head_dim = fields.get("hidden_size"), fields.get("num_attention_heads"), fields.get("head_dim")
    keys = ("num_attention_heads", "hidden_size", "head_dim")
    if width and heads and not head_dim and width % heads:
        yield (
            keys,
            (
                f"{heads} attention heads do not divide hidden_size {width}; set num_attention_heads to one of "
                f"{_divisors(width)}, or change hidden_size, or set head_dim"
            ),
        )
    elif fields.get("position") == "rotary" and head_dim and head_dim % 2:
        yield (
            ("head_dim", "position"),
            (
                f"rotary positions turn pairs of numbers, but head_dim is {head_dim}; choose an even head_dim, or "
                "position: learned"
            ),
        )
    elif fields.get("position") == "rotary" and width and heads and not head_dim and width // heads % 2:
        yield (
            (*keys, "position"),
            (
                f"rotary positions turn pairs of numbers, but {heads} attention heads of hidden_size {width} are "
                f"{width // heads} wide; choose sizes with an even quotient, or position: learned"
            ),
        )
    groups = fields.get("num_key_value_heads")
    if heads and groups and heads % groups:
        yield (
            ("num_key_value_heads", "num_attention_heads"),
            (
                f"{groups} key-value heads do not divide {heads} attention heads; set num_key_value_heads to one of "
                f"{_divisors(heads)}"
            ),
        )
    embedded = "embedding_size" if fields.get("embedding_size") else "hidden_size"
    if fields.get("position") == "sinusoidal" and fields.get(embedded) and fields[embedded] % 2:
        yield (
            (embedded, "position"),
            (
                f"sinusoidal positions come in pairs of sine and cosine, but {embedded} is "
                f"{fields[embedded]}; choose an "
                f"even {embedded}, or position: learned"
            ),
        )


def _divisors(number: int) -> str:
    return ", ".join(str(count) for count in range(1, min(number, 64) + 1) if number % count == 0)


def _vocabulary(fields: Config) -> Iterator[Finding]:
    size = fields.get("vocab_size")
    for name, meaning in TOKENS.items():
        token = fields.get(name)
        if token is not None and size is not None and token >= size:
            yield (
                (name, "vocab_size"),
                (
                    f"{name} {token} lies outside a vocabulary of {size}; choose a smaller id, or null if there is no "
                    f"{meaning}"
                ),
            )


def _family(fields: Config) -> Iterator[Finding]:
    """Config that only one family has a use for."""
    family = fields.get("family")
    if family is None:
        return
    pattern = fields.get("attention_pattern")
    if pattern == "full" and family == "decoder":
        yield (
            ("attention_pattern", "family"),
            (
                "attention_pattern 'full' would show a decoder the words that it must predict; use causal, "
                "sliding_window "
                "or linear, or family: encoder"
            ),
        )
    if pattern == "causal" and family != "decoder":
        reason = "its decoder is causal by itself" if family == "encoder-decoder" else "every token sees both sides"
        yield (
            ("attention_pattern", "family"),
            (
                f"attention_pattern 'causal' is for family: decoder, not for '{family}', where {reason}; "
                "leave it out, or "
                "use family: decoder"
            ),
        )
    if family != "encoder-decoder":
        yield from _only_in(fields, "encoder-decoder", "num_decoder_layers", "bidirectional_decoder")
        yield from _only_in(fields, "encoder-decoder", "length_prediction")
    if family != "encoder":
        yield from _only_in(fields, "encoder", "sparse_prediction")
        if fields.get("classifier_pooling") == "mean":
            yield (
                ("classifier_pooling", "family"),
                f"classifier_pooling mean is for family: encoder; a model of the family '{family}' reads its last "
                "token, leave it out",
            )
        width, embedded = fields.get("hidden_size"), fields.get("embedding_size")
        if embedded is not None and width is not None and embedded != width:
            yield (
                ("embedding_size", "family"),
                (
                    f"embedding_size {embedded} differs from hidden_size {width}, which only family: encoder can have; "
                    f"leave it out for '{family}'"
                ),
            )


def _only_in(fields: Config, family: str, *names: str) -> Iterator[Finding]:
    for name in names:
        if fields.get(name) not in (None, False):
            yield (
                (name, "family"),
                (
                    f"{name} is for family: {family}, but the family is '{fields['family']}'; leave it out, "
                    "or change the "
                    "family"
                ),
            )


def _window(fields: Config) -> Iterator[Finding]:
    """A window without its pattern, and the other way round."""
    if "attention_pattern" not in fields:
        return
    windowed = fields["attention_pattern"] == "sliding_window"
    if windowed and fields.get("sliding_window", 1) is None:
        yield (
            ("sliding_window", "attention_pattern"),
            (
                "attention_pattern 'sliding_window' needs sliding_window, the number of tokens that each one "
                "may look away"
            ),
        )
    if windowed and fields.get("family") == "decoder" and fields.get("sliding_window") == 1:
        yield (
            ("sliding_window", "family"),
            "sliding_window 1 lets each token of a decoder see nothing but itself; choose at least 2",
        )
    for name in ("sliding_window", "global_attn_every_n_layers", "local_rope_theta"):
        if not windowed and fields.get(name) is not None:
            yield (
                (name, "attention_pattern"),
                (
                    f"{name} is {fields[name]}, which only attention_pattern: sliding_window has a use for; "
                    "leave it out, "
                    "or set that pattern"
                ),
            )
    if windowed and fields.get("local_rope_theta") is not None and fields.get("position", "rotary") != "rotary":
        yield (
            ("local_rope_theta", "position"),
            (
                f"local_rope_theta is {fields['local_rope_theta']}, but position is '{fields['position']}'; "
                "leave it out, "
                "or use position: rotary"
            ),
        )


def _linear(fields: Config) -> Iterator[Finding]:
    """Linear attention sums its keys before it meets a query: nothing can be added to single scores."""
    if fields.get("attention_pattern") != "linear":
        return
    scoring, position = fields.get("attention_scoring", "scaled_dot_product"), fields.get("position")
    if scoring != "scaled_dot_product":
        yield (
            ("attention_scoring", "attention_pattern"),
            (
                f"attention_scoring '{scoring}' has no meaning for attention_pattern 'linear', whose score is "
                "a product of "
                "features; leave it out, or use another pattern"
            ),
        )
    if position in ("alibi", "relative"):
        yield (
            ("position", "attention_pattern"),
            (
                f"position '{position}' adds to single scores, which attention_pattern 'linear' never computes; use "
                "learned, sinusoidal, rotary or none, or another pattern"
            ),
        )


def _buckets(fields: Config) -> Iterator[Finding]:
    if fields.get("position") != "relative":
        return
    buckets, farthest = fields.get("relative_attention_num_buckets"), fields.get("relative_attention_max_distance")
    if buckets and buckets % 2:
        yield (
            ("relative_attention_num_buckets", "position"),
            (
                f"relative_attention_num_buckets is {buckets}, but half of the buckets are for each "
                "direction; choose an "
                "even number"
            ),
        )
    elif buckets and farthest and farthest <= buckets // 2:
        yield (
            ("relative_attention_max_distance", "relative_attention_num_buckets"),
            (
                f"relative_attention_max_distance {farthest} lies within the {buckets // 2} distances that "
                "have a bucket "
                f"each (half of relative_attention_num_buckets); choose more than {buckets // 2}"
            ),
        )


RULES: tuple[Callable[[Config], Iterator[Finding]], ...] = (
    _heads,
    _vocabulary,
    _family,
    _window,
    _linear,
    _buckets,
)
"""What may be wrong between fields that are fine one by one."""


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e308
