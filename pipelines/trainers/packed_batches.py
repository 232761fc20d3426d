"""Batches of packed dialogues: positions start again with each, and the mask lets none see another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.data.completion_packing import as_tensors, named_next, numbered
from pipelines.data.completions import IGNORED
from pipelines.objectives.attention_masks import additive, earlier, restarted

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """The collator of packed dialogues."""

    pad_id: int

    def __call__(self, packs: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids`, `labels` and `position_ids` (batch, length), and an `attention_mask` (batch, 1, query, key) to be added."""
        ids, numbers = numbered(packs, "input_ids", self.pad_id)
        labels, _ = numbered(packs, "labels", IGNORED)
        same = numbers[:, :, None] == numbers[:, None, :]
        length = ids.shape[1]
        allowed = same & earlier(length) & ((numbers >= 0)[:, None, :] | np.eye(length, dtype=np.bool_))
        return as_tensors(
            input_ids=ids, attention_mask=additive(allowed), position_ids=restarted(numbers), labels=named_next(labels, numbers)
        )
