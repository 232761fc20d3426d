"""FineryCnnConfig: the shape of a convolutional encoder-decoder (`family: cnn` of a recipe)."""

import os
from typing import TYPE_CHECKING, Any, ClassVar

from transformers import PreTrainedConfig

from .convolutional_rules import RULES

if TYPE_CHECKING:
    # save_pretrained copies the files that a file names in such lines: a config saved alone then carries
    # the models that its auto_map promises.
    from .modeling_finery_cnn import FineryCnnForConditionalGeneration  # noqa: F401

AUTO_MAP = {
    "AutoConfig": "configuration_finery_cnn.FineryCnnConfig",
    "AutoModel": "modeling_finery_cnn.FineryCnnModel",
    "AutoModelForSeq2SeqLM": "modeling_finery_cnn.FineryCnnForConditionalGeneration",
}
"""Where a process without Finery finds each class."""


class FineryCnnConfig(PreTrainedConfig):
    """ConvS2S: Gehring et al. 2017, "Convolutional Sequence to Sequence Learning", section 3,
    arxiv.org/abs/1705.03122. Where a default is None, what stands for it is written out in the built config.
    """

    model_type: ClassVar[str] = "finery-cnn"
    _auto_class: ClassVar[str | None] = "AutoConfig"  # every save writes the code beside the config
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    vocab_size: int = 30522
    """Rows of the word embedding. Normally taken from the tokenizer."""
    hidden_size: int = 512
    """Channels of each convolution's output, after its gate."""
    embedding_size: int | None = None
    """Width of the word embedding and of what attention compares. None: hidden_size."""
    num_hidden_layers: int = 4
    """Number of the encoder's layers."""
    num_decoder_layers: int | None = None
    """Number of the decoder's layers, each with its own attention; None: as many as the encoder has."""
    kernel_size: int = 3
    """Tokens that a convolution sees at once. The encoder's window lies around a token, the decoder's ends at it."""
    max_position_embeddings: int = 512
    """Longest sequence: positions are learned."""
    attention_scoring: str = "dot_product"
    """How a decoder's state scores an encoder's: "dot_product" (section 3.3, equation 1)."""

    hidden_dropout_prob: float | int = 0.1
    """Dropout on the embeddings, on the input of each convolution, and before the output matrix (section 4.3)."""
    tie_word_embeddings: bool = True
    """Let the language-model head use the word embedding as its output matrix."""
    initializer_range: float = 0.1
    """Standard deviation that embeddings start with; the others follow from their inputs (section 3.5)."""
    use_cache: bool = True
    """Whether a decoder returns the last inputs of its convolutions, for the next token to be cheap."""
    pad_token_id: int | None = 0
    """The padding token: its embedding starts at zero and is not learned as an input."""
    bos_token_id: int | None = None
    """The token that begins a text."""
    eos_token_id: int | None = None
    """The token that ends a text."""
    decoder_start_token_id: int | None = None
    """The token that the decoder starts from. None: bos_token_id, else pad_token_id."""

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_contradictions()
        for name, value in RULES.completed({name: getattr(self, name) for name in RULES.fields}).items():
            setattr(self, name, value)
        self.is_encoder_decoder = True
        kwargs.pop("is_encoder_decoder", None)
        super().__post_init__(**kwargs)
        if getattr(self, "auto_map", None) is None:
            self.auto_map = dict(AUTO_MAP)

    def _refuse_contradictions(self) -> None:
        if sentences := RULES.contradictions(self.__dict__):
            raise ValueError("\n".join(sentences))

    def validate(self) -> None:
        """Called before every save: a config that was edited into a contradiction is not written."""
        super().validate()
        self._refuse_contradictions()

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Write config.json and the family's code. The saved `auto_map` names every head, whatever was loaded."""
        self.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)
