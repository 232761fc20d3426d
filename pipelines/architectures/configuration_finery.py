"""FineryConfig: the shape of a model in Hugging Face's words, plus the design choices of the family."""

import copy
import os
from typing import TYPE_CHECKING, Any, ClassVar

from transformers import PreTrainedConfig

from .configuration_rules import completed, contradictions

if TYPE_CHECKING:
    # save_pretrained copies the files that a file names in such lines: a config saved alone then carries
    # the models that its auto_map promises.
    from .modeling_finery import FineryModel  # noqa: F401
    from .modeling_finery_classification import FineryForSequenceClassification  # noqa: F401
    from .modeling_finery_language import FineryForMaskedLM  # noqa: F401

AUTO_MAP = {
    "AutoConfig": "configuration_finery.FineryConfig",
    "AutoModel": "modeling_finery.FineryModel",
    "AutoModelForMaskedLM": "modeling_finery_language.FineryForMaskedLM",
    "AutoModelForPreTraining": "modeling_finery_language.FineryForPreTraining",
    "AutoModelForCausalLM": "modeling_finery_language.FineryForCausalLM",
    "AutoModelForSeq2SeqLM": "modeling_finery_language.FineryForConditionalGeneration",
    "AutoModelForCausalLMWithValueHead": "modeling_finery_language.FineryForCausalLMWithValueHead",
    "AutoModelForSequenceClassification": "modeling_finery_classification.FineryForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_finery_classification.FineryForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_finery_classification.FineryForQuestionAnswering",
    "AutoModelForMultipleChoice": "modeling_finery_classification.FineryForMultipleChoice",
    "AutoModelForReward": "modeling_finery_classification.FineryForReward",
}
"""Where a process without Finery finds each class. transformers alone would name only the class being saved."""

WRITTEN_OUT = ("num_key_value_heads", "head_dim")
"""Fields that hold their usual value instead of None, for transformers' caches and PEFT read them from a config."""


class FineryConfig(PreTrainedConfig):
    """One surface for all three families; with the default choices it is BERT (Devlin et al. 2019, section 3).

    Where a default is None, the usual value for the family stands for it; each field says which.
    """

    model_type: ClassVar[str] = "finery"
    _auto_class: ClassVar[str | None] = "AutoConfig"  # every save writes the code beside the config
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    family: str = "encoder"
    """Which stacks are built: "encoder" (every token sees both sides), "decoder" (each token sees those before it) or
    "encoder-decoder" (a decoder that also attends to an encoder's output)."""

    vocab_size: int = 30522
    """Rows of the word embedding. Normally taken from the tokenizer."""
    hidden_size: int = 768
    """Width of the residual stream."""
    num_hidden_layers: int = 12
    """Number of layers; of the encoder's, where there is a decoder too."""
    num_decoder_layers: int | None = None
    """Number of the decoder's layers in an encoder-decoder; None: as many as the encoder has."""
    num_attention_heads: int = 12
    """Query heads of each attention; their number must divide hidden_size unless head_dim is given."""
    num_key_value_heads: int | None = None
    """Heads of keys and values, each shared by a group of query heads (grouped-query attention, Ainslie et al. 2023,
    arxiv.org/abs/2305.13245; 1 is multi-query attention, Shazeer 2019, arxiv.org/abs/1911.02150). None: one each."""
    head_dim: int | None = None
    """Width of a head; None: hidden_size / num_attention_heads."""
    intermediate_size: int = 3072
    """Width inside the feed-forward network."""
    embedding_size: int | None = None
    """Width of the embeddings, projected to hidden_size if it differs (Clark et al. 2020, "ELECTRA", section 3.2,
    arxiv.org/abs/2003.10555). Encoders only. None: hidden_size."""
    max_position_embeddings: int = 512
    """Longest sequence for learned, sinusoidal and rotary positions, and most tokens that a length head can predict.
    The other positions have no end."""
    type_vocab_size: int | None = None
    """Number of segments that token_type_ids may name, 0 for none. None: 2 in encoders, else 0."""

    position: str = "learned"
    """Where order comes from: "learned" (a row for each position, as in BERT), "sinusoidal" (fixed sines and cosines,
    Vaswani et al. 2017, section 3.5), "rotary" (queries and keys turned by their place, Su et al. 2021,
    arxiv.org/abs/2104.09864), "alibi" (scores fall with distance, Press et al. 2022, arxiv.org/abs/2108.12409),
    "relative" (a learned number for each bucket of distances, Raffel et al. 2020, section 2.1,
    arxiv.org/abs/1910.10683) or "none" (a causal mask alone tells a decoder about order)."""
    rope_theta: float | int = 10000.0
    """Base of the wave lengths of rotary positions; larger turns slower. A plain number, for it is all there is to
    say: transformers' `rope_parameters` mapping serves schemes that stretch a trained model to longer sequences."""
    local_rope_theta: float | int | None = None
    """The same for layers that see a window only. None: rope_theta."""
    relative_attention_num_buckets: int = 32
    """Buckets of distances of relative positions: half for near ones, half for ranges that grow."""
    relative_attention_max_distance: int = 128
    """Distance from which on relative positions tell no difference."""

    norm_type: str = "layer_norm"
    """"layer_norm" (Ba et al. 2016, arxiv.org/abs/1607.06450) or "rms_norm", without mean and bias (Zhang and
    Sennrich 2019, arxiv.org/abs/1910.07467)."""
    norm_position: str = "post"
    """Norm after each residual sum ("post", Vaswani et al. 2017, section 3.1), on each sublayer's input ("pre", Xiong
    et al. 2020, arxiv.org/abs/2002.04745, table 1), or on input and output of each sublayer ("sandwich", Ding et al.
    2021, section 2.4, arxiv.org/abs/2105.13290). The last two have one more after the last layer."""
    norm_bias: bool = True
    """Whether LayerNorms have a bias."""
    embedding_norm: bool | None = None
    """Norm after the sum of embeddings. None: in encoders only."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in every norm."""

    attention_scoring: str = "scaled_dot_product"
    """How a query scores a key: "scaled_dot_product" (Vaswani et al. 2017, section 3.2.1), "dot_product" (not
    divided), "general" (a matrix between them, Luong et al. 2015, section 3.1, arxiv.org/abs/1508.04025), "additive"
    (a small network, Bahdanau et al. 2015, appendix A.1.2, arxiv.org/abs/1409.0473) or "cosine" (of unit length, times
    a learned temperature, Henry et al. 2020, arxiv.org/abs/2010.04245)."""
    attention_pattern: str | None = None
    """Who sees whom in self-attention: "full", "causal" (the only one that sees all it may in a decoder),
    "sliding_window" (near ones, Vaswani et al. 2017, section 4: restricted self-attention) or "linear" (Katharopoulos
    et al. 2020, arxiv.org/abs/2006.16236; no weights, so nothing is dropped out of them). None: "causal" in decoders,
    else "full". An encoder-decoder's decoder is causal in any of them, and its cross-attention sees everything."""
    sliding_window: int | None = None
    """Width of the window. Causal: a token sees itself and the sliding_window - 1 before it; else sliding_window on
    each side."""
    global_attn_every_n_layers: int | None = None
    """With a sliding window, let layers 0, n, 2n, … see everything (Warner et al. 2024, "ModernBERT", section 2.1.2,
    arxiv.org/abs/2412.13663). None: no layer does."""
    qk_norm: bool = False
    """Norm of each head's queries and keys (Dehghani et al. 2023, section 2, arxiv.org/abs/2302.05442)."""
    attention_bias: bool = True
    """Biases of the query, key, value and output projections."""
    hidden_act: str = "gelu"
    """Activation of the feed-forward network and of the masked-LM head, by its name in transformers."""
    is_gated_act: bool = False
    """Multiply the widened states with a gate, act(gate(x)) * intermediate(x) (Shazeer 2020,
    arxiv.org/abs/2002.05202)."""
    mlp_bias: bool = True
    """Biases of the feed-forward network."""

    lm_head_bias: bool | None = None
    """A bias for each word of the vocabulary in a language-model head. None: in encoders only."""
    tie_word_embeddings: bool = True
    """Let the language-model head use the word embedding as its output matrix."""
    scale_embedding: bool | None = None
    """Multiply word embeddings with √hidden_size (Vaswani et al. 2017, section 3.4). None: with sinusoidal
    positions."""
    scale_logits: bool = False
    """Divide the last hidden states by √hidden_size before the output matrix, as T5 with tied embeddings does."""
    bidirectional_decoder: bool = False
    """No causal mask in an encoder-decoder's decoder: it predicts masked words and is decoded by mask-predict
    (Ghazvininejad et al. 2019, arxiv.org/abs/1904.09324)."""
    length_prediction: bool = False
    """Let an encoder-decoder predict the length of its output from its encoder (same paper, section 2.3)."""
    sparse_prediction: bool = False
    """Compute the masked-LM head only where a label is asked for. With labels, `logits` are then (masked, vocab)."""

    hidden_dropout_prob: float | int = 0.1
    """Dropout on each sublayer's output."""
    embedding_dropout_prob: float | int | None = None
    """Dropout on the embeddings. None: hidden_dropout_prob."""
    attention_probs_dropout_prob: float | int = 0.1
    """Dropout on the attention weights."""
    activation_dropout_prob: float | int = 0.0
    """Dropout inside the feed-forward network, after the activation."""
    layerdrop: float | int = 0.0
    """Chance that a whole layer is skipped in a training step (Fan et al. 2020, arxiv.org/abs/1909.11556)."""
    classifier_dropout: float | int | None = None
    """Dropout before the classifier. None: hidden_dropout_prob."""
    classifier_pooling: str = "first"
    """What an encoder's head on a whole text reads: "first" (the pooled first token, Devlin et al. 2019, section 4.1)
    or "mean" (the mean of the tokens without padding, no pooler, Reimers and Gurevych 2019, section 3,
    arxiv.org/abs/1908.10084)."""

    initializer: str = "normal"
    """What matrices start from: "normal", "truncated_normal" (no further than two standard deviations),
    "xavier_uniform" (Glorot and Bengio 2010, equation 16; embeddings normal with hidden_size**-0.5) or "fan_in"
    (normal with in_features**-0.5, as T5; embeddings normal with 1)."""
    initializer_range: float = 0.02
    """Standard deviation of "normal" and "truncated_normal"."""
    scale_residual_init: bool = False
    """Divide what the matrices that write to the residual stream start from by √(2 · layers) (Radford et al. 2019,
    "GPT-2", section 2.3)."""

    use_cache: bool = True
    """Whether a decoder returns its keys and values, for the next tokens to be cheap."""
    pad_token_id: int | None = 0
    """The padding token: its embedding starts at zero and is not learned as an input."""
    bos_token_id: int | None = None
    """The token that begins a text."""
    eos_token_id: int | None = None
    """The token that ends a text."""
    decoder_start_token_id: int | None = None
    """The token that an encoder-decoder's decoder starts from. None: bos_token_id, else pad_token_id."""

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_contradictions()
        self.is_encoder_decoder = self.family == "encoder-decoder"
        for redundant in ("is_encoder_decoder", "layer_types"):  # both follow from the other fields
            kwargs.pop(redundant, None)
        usual = completed({**self.__dict__, **dict.fromkeys(WRITTEN_OUT)})
        self._written_out = {name: usual[name] for name in WRITTEN_OUT if getattr(self, name) in (None, usual[name])}
        for name, value in self._written_out.items():
            setattr(self, name, value)
        super().__post_init__(**kwargs)
        if getattr(self, "auto_map", None) is None:
            self.auto_map = dict(AUTO_MAP)

    def usual(self, name: str) -> Any:
        """A field's value, or what is usual for the family where it is None."""
        return completed(self.__dict__)[name]

    @property
    def layer_types(self) -> list[str]:
        """What transformers' caches must keep of each layer: only a causal window may forget.

        An encoder-decoder keeps everything, for its cross-attention's cache is built from the same list.
        """
        if self.family != "decoder" or self.usual("attention_pattern") != "sliding_window":
            return ["full_attention"] * self.num_hidden_layers
        return ["sliding_attention" if self.windowed(i) else "full_attention" for i in range(self.num_hidden_layers)]

    def windowed(self, layer_idx: int) -> bool:
        """Whether a layer of any stack sees a window only."""
        every = self.global_attn_every_n_layers
        is_global = every is not None and layer_idx % every == 0
        return self.usual("attention_pattern") == "sliding_window" and not is_global

    @property
    def base_model_tp_plan(self) -> dict[str, str] | None:
        """How tensor parallelism cuts the matrices. None where a parameter or bias of every head would have to be cut
        along, which no style of transformers does."""
        if self.position in ("alibi", "relative") or self.attention_scoring in ("general", "additive", "cosine"):
            return None
        plan = {}
        for attention in ("attention", "cross_attention"):
            plan |= {f"layers.*.{attention}.{name}": "colwise" for name in ("query", "key", "value")}
            plan[f"layers.*.{attention}.output"] = "rowwise"
            if self.qk_norm:
                plan |= {
                    f"layers.*.{attention}.{name}_norm": "replicated_with_grad_allreduce" for name in ("query", "key")
                }
        plan |= {f"layers.*.feed_forward.{name}": "colwise" for name in ("intermediate", "gate")}
        return {**plan, "layers.*.feed_forward.output": "rowwise"}

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "FineryConfig":
        """This config; for an encoder-decoder's decoder, with its number of layers, by which caches are built."""
        if not decoder or encoder or self.family != "encoder-decoder":
            return self
        view = copy.copy(self)
        view.num_hidden_layers = self.usual("num_decoder_layers")
        return view

    def _refuse_contradictions(self, unused: tuple[str, ...] = ()) -> None:
        written_out = self.__dict__.get("_written_out", {})  # judged as if they had been left to follow the others
        fields = {name: None if written_out.get(name) == value else value for name, value in self.__dict__.items()}
        if sentences := contradictions(fields | dict.fromkeys(unused)):
            raise ValueError("\n".join(sentences))

    def _unused(self) -> tuple[str, ...]:
        """A window that was set on a finished config of another pattern has no effect and is not saved: transformers'
        own tests set one wherever the word is known."""
        return () if self.usual("attention_pattern") == "sliding_window" else ("sliding_window",)

    def validate(self) -> None:
        """Called before every save: a config that was edited into a contradiction is not written."""
        super().validate()
        self._refuse_contradictions(self._unused())

    def to_dict(self) -> dict[str, Any]:
        """What is saved."""
        fields = super().to_dict()
        fields.pop("_written_out", None)
        return fields | dict.fromkeys(self._unused())

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Write config.json and the family's code. The saved `auto_map` names every head, whatever was loaded."""
        self.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)
