"""FineryRnnConfig: the shape of a recurrent model (`family: rnn` of a recipe)."""

import os
from typing import TYPE_CHECKING, Any, ClassVar

from transformers import PreTrainedConfig

from .recurrent_rules import RULES

if TYPE_CHECKING:
    # save_pretrained copies the files that a file names in such lines: a config saved alone then carries
    # the models that its auto_map promises.
    from .modeling_finery_rnn import FineryRnnModel  # noqa: F401
    from .modeling_finery_rnn_heads import FineryRnnForCausalLM  # noqa: F401

AUTO_MAP = {
    "AutoConfig": "configuration_finery_rnn.FineryRnnConfig",
    "AutoModel": "modeling_finery_rnn.FineryRnnModel",
    "AutoModelForPreTraining": "modeling_finery_rnn_heads.FineryRnnForPreTraining",
    "AutoModelForCausalLM": "modeling_finery_rnn_heads.FineryRnnForCausalLM",
    "AutoModelForSeq2SeqLM": "modeling_finery_rnn_heads.FineryRnnForConditionalGeneration",
    "AutoModelForSequenceClassification": "modeling_finery_rnn_heads.FineryRnnForSequenceClassification",
}
"""Where a process without Finery finds each class."""


class FineryRnnConfig(PreTrainedConfig):
    """A recurrent network (Elman 1990), with gates (Hochreiter and Schmidhuber 1997; Cho et al. 2014,
    arxiv.org/abs/1406.1078) unless `cell` is rnn; with the default choices a bidirectional LSTM encoder and an LSTM
    decoder with additive attention. Where a default is None, what stands for it is written out in the built config.
    """

    model_type: ClassVar[str] = "finery-rnn"
    _auto_class: ClassVar[str | None] = "AutoConfig"  # every save writes the code beside the config
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    stack: str = "encoder-decoder"
    """Which stacks are built: "encoder-decoder" (Sutskever et al. 2014, arxiv.org/abs/1409.3215), "encoder" (a reader
    of whole texts, for classifiers) or "decoder" (a language model)."""
    cell: str = "lstm"
    """"lstm", "gru" (Cho et al. 2014) or "rnn" (tanh, no gates): torch's LSTM, GRU and RNN."""
    vocab_size: int = 30522
    """Rows of the word embedding. Normally taken from the tokenizer."""
    hidden_size: int = 512
    """Width of each layer's states. The two directions of an encoder have half of it each."""
    embedding_size: int | None = None
    """Width of the word embedding. None: hidden_size, half of it with separate_directions. Where it differs from
    what the head reads, a projection stands before the output matrix."""
    num_hidden_layers: int = 2
    """Number of layers; of the encoder's, where there is a decoder too."""
    num_decoder_layers: int | None = None
    """Number of the decoder's layers in an encoder-decoder; None: as many as the encoder has."""
    bidirectional: bool | None = None
    """Whether an encoder reads from both ends (Schuster and Paliwal 1997; Bahdanau et al. 2015, section 3.2). None:
    yes."""
    separate_directions: bool = False
    """Whether the two directions of an encoder are networks of their own from the words to the last layer (Peters et
    al. 2018, "Deep contextualized word representations", section 3.1, arxiv.org/abs/1802.05365). Without it each layer
    reads both directions of the one below, which shows a language model the words that it must predict."""

    attention_scoring: str | None = None
    """How a decoder's state scores an encoder's: "additive" (a small network, Bahdanau et al. 2015, appendix A.1.2,
    arxiv.org/abs/1409.0473), "dot_product", "general" (a matrix between them; both Luong et al. 2015, section 3.1,
    arxiv.org/abs/1508.04025) or "none": the decoder knows the source by the encoder's last state alone. None:
    "additive" in an encoder-decoder, else "none"."""
    input_feeding: bool | None = None
    """Whether each step of the decoder also reads what attention gave in the step before (Luong et al. 2015, section
    3.3). Training then takes its steps one by one. None: where there is attention."""

    hidden_dropout_prob: float | int = 0.1
    """Dropout between layers and on what the head reads (Zaremba et al. 2014, arxiv.org/abs/1409.2329)."""
    embedding_dropout_prob: float | int | None = None
    """Dropout on what the first layer reads. None: hidden_dropout_prob."""
    word_dropout_prob: float | int = 0.0
    """Chance that a word of the vocabulary has no embedding in a training step (Merity et al. 2018, "AWD-LSTM",
    section 4.3, arxiv.org/abs/1708.02182)."""
    weight_dropout_prob: float | int = 0.0
    """DropConnect: dropout on the matrices from one state to the next (same paper, section 2)."""
    variational_dropout: bool = False
    """One dropout mask for all steps of a sequence (Gal and Ghahramani 2016, arxiv.org/abs/1512.05287; same paper,
    section 4.2)."""
    classifier_dropout: float | int | None = None
    """Dropout before the classifier. None: hidden_dropout_prob."""

    tie_word_embeddings: bool = True
    """Let the language-model head use the word embedding as its output matrix."""
    initializer_range: float = 0.1
    """Embeddings and matrices outside the cells start uniform within ± this (Luong et al. 2015, section 4.1); cells
    start as torch's, within ± 1 / √(width of their state)."""
    use_cache: bool = True
    """Whether a decoder returns its states, for the next token to be cheap."""
    pad_token_id: int | None = 0
    """The padding token: its embedding starts at zero and is not learned as an input."""
    bos_token_id: int | None = None
    """The token that begins a text."""
    eos_token_id: int | None = None
    """The token that ends a text."""
    decoder_start_token_id: int | None = None
    """The token that a decoder with an encoder starts from. None: bos_token_id, else pad_token_id."""

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_contradictions()
        for name, value in RULES.completed({name: getattr(self, name) for name in RULES.fields}).items():
            setattr(self, name, value)
        self.is_encoder_decoder = self.stack == "encoder-decoder"
        kwargs.pop("is_encoder_decoder", None)  # follows from the stack
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
