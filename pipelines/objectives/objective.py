"""What every pretraining objective is: how text is packed for it, what a batch asks, and what the loss is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pipelines.architectures.arithmetic import WORD_HEADS
from pipelines.core.config import Block
from pipelines.core.costs import Example
from pipelines.core.interfaces import Head

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.utils import ModelOutput

Collate = Callable[[Sequence[dict[str, Any]]], "dict[str, Tensor]"]
"""Turns examples, each with `input_ids`, what its layout adds, and `draw`, into a batch."""

ENDS = {"blocks": 2, "stream": 0, "sentences": 3}
"""Special tokens that each layout adds to an example: [CLS] … [SEP]; none; [CLS] … [SEP] … [SEP]."""


class Objective(Block):
    """Base of every objective, with what is usual filled in."""

    name: str

    layout: ClassVar[Literal["blocks", "stream", "sentences"]] = "blocks"
    """Pieces between [CLS] and [SEP]; pieces of a stream, nothing added; or spans of whole sentences."""
    causal: ClassVar[bool] = False
    """Whether the model sees only what comes before: the mask of separate documents must agree."""
    separates: ClassVar[bool] = False
    """Whether documents of one block can be kept apart: `input_ids` keep their length and every end of a document."""
    own_masks: ClassVar[bool] = False
    """Whether its batches come with ready masks, documents kept apart or not."""
    by_sequences: ClassVar[bool] = False
    """Whether positions alone can say where such documents begin: nothing but order, padding and documents hides a
    token from another, and the one model that is trained reads the batch as it is."""
    pairs: ClassVar[bool] = False
    """Whether it learns from pairs of a source and a target, as a task, and not from text."""
    marks_spans: ClassVar[bool] = False
    """Whether special tokens among the labels mark where hidden spans begin and end."""
    redraws: ClassVar[bool] = True
    """Whether it asks something else of the same text in another epoch, and with another seed."""
    text_scores: ClassVar[tuple[str, ...]] = ("hidden_bits_per_byte", "accuracy")
    """What is measured of it on held-out text: bits per byte where it gives a text's probability, those of the hidden
    tokens else, with `pair_accuracy` where it judges pairs; of replaced tokens how well they are told."""
    every_token: ClassVar[bool] = False
    """Whether every token is named from all before it, so that text is read in windows that may overlap."""
    prefix_both_ways: ClassVar[bool] = False
    """Whether the model reads what stands before the tokens that it names in both directions."""
    unaskable: ClassVar[str] = ""
    """Why a model that learnt it cannot be asked in words, as a sentence without its subject; empty where it can."""
    two_models: ClassVar[bool] = False
    """Whether `prepare` puts another model beside the one that is kept: no adapter can hold what was learnt."""

    @property
    def head(self) -> Head:
        """The head that the model is opened with."""
        raise NotImplementedError

    @property
    def label_names(self) -> Mapping[str, float]:
        """Batch keys whose entries other than -100 are the items of one part of the loss, with the part's weight."""
        return {"labels": 1.0}

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        """Why a model of this resolved architecture cannot learn it, as a sentence without its subject, or None."""
        return None

    def too_long(self, block_size: int) -> str | None:
        """Why an example cannot have `block_size` tokens, as a sentence without its subject; None if it can."""
        return None

    def special_tokens(self) -> tuple[str, ...]:
        """Tokens that a tokenizer trained for it must have beside the usual ones."""
        return ()

    def raw_length(self, block_size: int) -> int:
        """Tokens that are taken from the text for an example of `block_size`."""
        return block_size - ENDS[self.layout]

    def example(self, block_size: int) -> Example:
        """What passes through the model for an example of `block_size` tokens."""
        kind = self.head.kind
        if kind in ("masked_lm", "pretraining"):
            predicted = max(1, round(block_size * getattr(self, "probability", 1.0)))
            return Example(block_size, block_size, predicted, whole=False)
        return Example(block_size, block_size, block_size if kind in WORD_HEADS else 0)

    def collate(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig | None = None) -> Collate:
        """A function from examples to a batch: the model's inputs and the labels, -100 where nothing is asked.

        Labels are aligned with the logits: `labels[:, t]` is what position t predicts. Each example has a `draw`, a
        number of its own in every epoch (such as epoch × examples + index): seed and draw alone decide everything
        random about it, whatever batch, process or resumed run it is part of. `config` is the model's, where there is
        one. Raises ModelError when tokenizer or model do not serve.
        """
        raise NotImplementedError

    def prepare(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, build: Callable[..., PreTrainedModel]
    ) -> PreTrainedModel:
        """The model that is trained. `build(head, **overrides)` makes another one of the recipe's architecture."""
        return model

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """The part of the trained model that the stage leaves behind."""
        return model

    def loss(self, model: PreTrainedModel, batch: dict[str, Tensor]) -> tuple[Tensor, ModelOutput]:
        """(sums over the items of each part, in the order of `label_names` (parts,); the model's outputs)."""
        from pipelines.objectives.losses import token_loss

        total, outputs = token_loss(model, batch)
        return total.reshape(1), outputs
