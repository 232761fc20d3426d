"""FineryConfig: the shape of a model in Hugging Face's words, plus the design choices of the family."""

import os
from typing import TYPE_CHECKING, Any, ClassVar

from transformers import PreTrainedConfig

from .contradictions import contradictions

if TYPE_CHECKING:
    # save_pretrained copies the files that a file names in such a line: a config saved alone then carries
    # the models that its auto_map promises.
    from .modeling_finery import FineryModel  # noqa: F401

AUTO_MAP = {
    "AutoConfig": "configuration_finery.FineryConfig",
    "AutoModel": "modeling_finery.FineryModel",
    "AutoModelForMaskedLM": "modeling_finery.FineryForMaskedLM",
    "AutoModelForSequenceClassification": "modeling_finery.FineryForSequenceClassification",
}
"""Where a process without Finery finds each class. transformers alone would name only the class being saved."""


class FineryConfig(PreTrainedConfig):
    """An encoder in BERT's words: with the default design choices it is BERT (Devlin et al. 2019, section 3)."""

    model_type: ClassVar[str] = "finery"
    _auto_class: ClassVar[str | None] = "AutoConfig"  # every save writes the code beside the config

    family: str = "encoder"
    """Which stack is built. Only "encoder" so far: every token sees the whole sequence."""
    position: str = "learned"
    """Where order comes from: "learned" (a row for each position, as in BERT), "sinusoidal" (fixed sines and
    cosines, Vaswani et al. 2017, section 3.5; word embeddings are then multiplied by √hidden_size, section 3.4) or
    "rotary" (queries and keys turned by their place, Su et al. 2021, arxiv.org/abs/2104.09864, section 3.4.2)."""
    norm_position: str = "post"
    """LayerNorm after each residual sum ("post", Vaswani et al. 2017, section 3.1) or on each sublayer's input with
    one more after the last layer ("pre", Xiong et al. 2020, arxiv.org/abs/2002.04745, table 1)."""
    sparse_prediction: bool = False
    """Compute the masked-LM head only where a label is asked for. With labels, `logits` are then (masked, vocab)."""

    vocab_size: int = 30522
    """Rows of the word embedding. Normally taken from the tokenizer."""
    hidden_size: int = 768
    """Width of the residual stream."""
    num_hidden_layers: int = 12
    """Number of layers, each attention followed by a feed-forward network."""
    num_attention_heads: int = 12
    """Heads of each attention; their number must divide hidden_size."""
    intermediate_size: int = 3072
    """Width inside the feed-forward network."""
    hidden_act: str = "gelu"
    """Activation of the feed-forward network and of the masked-LM head, by its name in transformers."""
    hidden_dropout_prob: float | int = 0.1
    """Dropout on the embeddings and on each sublayer's output."""
    attention_probs_dropout_prob: float | int = 0.1
    """Dropout on the attention weights."""
    max_position_embeddings: int = 512
    """Longest sequence."""
    rope_theta: float | int = 10000.0
    """Base of the wave lengths of rotary positions; larger turns slower. A plain number, for it is all there is to
    say: transformers' `rope_parameters` mapping serves schemes that stretch a trained model to longer sequences."""
    type_vocab_size: int = 2
    """Number of segments that token_type_ids may name."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution that matrices start from."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in LayerNorm."""
    pad_token_id: int | None = 0
    """The padding token: its embedding starts at zero and is not learned as an input."""
    classifier_dropout: float | int | None = None
    """Dropout before the classifier; null means hidden_dropout_prob."""
    tie_word_embeddings: bool = True
    """Let the masked-LM head use the word embedding as its output matrix."""

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_contradictions()
        super().__post_init__(**kwargs)
        if getattr(self, "auto_map", None) is None:
            self.auto_map = dict(AUTO_MAP)

    def _refuse_contradictions(self) -> None:
        if found := contradictions(self.__dict__):
            raise ValueError("\n".join(found))

    def validate(self) -> None:
        """Called before every save: a config that was edited into a contradiction is not written."""
        super().validate()
        self._refuse_contradictions()

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Write config.json and the family's code. The saved `auto_map` names every head, whatever was loaded."""
        self.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)
