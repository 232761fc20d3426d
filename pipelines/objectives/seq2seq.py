"""Sequence to sequence: the decoder writes a target, given the source and the right beginning of the target.

Sequence to sequence: the decoder writes a target, given the source and the right beginning of the target.

Sutskever et al. 2014, "Sequence to Sequence Learning with Neural Networks", section 2, arxiv.org/abs/1409.3215, with
the label smoothing of 0.1 of Vaswani et al. 2017, section 5.4, arxiv.org/abs/1706.03762: it makes the perplexity worse
and BLEU better.

Batches of sources and targets, and the loss of a target: see `pipelines.objectives.seq2seq`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from pipelines.core.interfaces import Head
from pipelines.objectives import attention_masks
from pipelines.objectives.batches import IGNORED_ROWS, padding_token, stacked_rows, start_token, taught
from pipelines.objectives.objective import Collate, Objective

if TYPE_CHECKING:
    from torch import Tensor


class Seq2Seq(Objective):
    """Write the target token by token."""

    name: Literal["seq2seq"] = "seq2seq"
    redraws: ClassVar[bool] = False
    pairs: ClassVar[bool] = True
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """The share of the probability that is asked of all tokens alike, and not of the right one."""

    @property
    def head(self) -> Head:
        """The head that writes."""
        return Head("seq2seq_lm")

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        return attention_masks.misfit(architecture)

    def collate(self, tokenizer: Any, seed: int, config: Any = None) -> Collate:
        """Examples have `input_ids` and, as `labels`, the target's ids; nothing here is random."""

        return Pairs.of(tokenizer, config)

    def loss(self, model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:

        return smoothed_loss(model, batch, self.label_smoothing)


@dataclass(frozen=True)
class Pairs:
    """The collator of Seq2Seq."""

    start: int
    padding: int

    @classmethod
    def of(cls, tokenizer: Any, config: Any) -> Pairs:
        """The collator for a tokenizer and a model's config. Raises ModelError."""
        return cls(start_token(config, tokenizer), padding_token(tokenizer))

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Sources as `input_ids`, targets as `labels` and, one to the right, as `decoder_input_ids`.

        A target that begins with the very token that the decoder begins with is not asked for it.
        """
        targets = [example["labels"] for example in examples]
        targets = [target[1:] if len(target) > 1 and target[0] == self.start else target for target in targets]
        source = stacked_rows([example["input_ids"] for example in examples], self.padding)
        return taught(source, stacked_rows(targets, self.padding), self.start)


def smoothed_loss(model: nn.Module, batch: dict[str, Tensor], label_smoothing: float) -> tuple[Tensor, Any]:
    """Cross-entropy against smoothed targets, summed over the tokens of the target (1,)."""
    inputs = dict(batch)
    labels = inputs.pop("labels")  # (batch, target)
    outputs = model(**inputs)
    wanted = labels != IGNORED_ROWS
    total = functional.cross_entropy(
        outputs.logits[wanted].float(), labels[wanted], reduction="sum", label_smoothing=label_smoothing
    )
    return torch.stack([total]), outputs
