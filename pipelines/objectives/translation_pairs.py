"""Batches of sources and targets, and the loss of a target: see `pipelines.objectives.seq2seq`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipelines.objectives.rows import IGNORED, padding_token, stacked, start_token, taught


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
        source = stacked([example["input_ids"] for example in examples], self.padding)
        return taught(source, stacked(targets, self.padding), self.start)


def smoothed_loss(model: nn.Module, batch: dict[str, Tensor], label_smoothing: float) -> tuple[Tensor, Any]:
    """Cross-entropy against smoothed targets, summed over the tokens of the target (1,)."""
    inputs = dict(batch)
    labels = inputs.pop("labels")  # (batch, target)
    outputs = model(**inputs)
    wanted = labels != IGNORED
    total = functional.cross_entropy(
        outputs.logits[wanted].float(), labels[wanted], reduction="sum", label_smoothing=label_smoothing
    )
    return torch.stack([total]), outputs
