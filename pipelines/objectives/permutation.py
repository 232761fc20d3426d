"""Random orders of tokens as masks of XLNet: who is asked, and who sees whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipelines.objectives.batches import IGNORED, draws_of, padding_of, special_ids, stacked, tensors
from pipelines.objectives.randomness import uniforms

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.objectives.permutation_lm import PermutationLM

ORDER, SPAN_LENGTH, SPAN_START = 0, 1, 2
"""Streams of random numbers."""


@dataclass(frozen=True)
class Permutation:
    """The collator of PermutationLM."""

    objective: PermutationLM
    seed: int
    pad_id: int
    special: npt.NDArray[np.bool_]
    """For each id, whether it is never asked."""

    @classmethod
    def of(cls, objective: PermutationLM, tokenizer: Any, seed: int) -> Permutation:
        """The collator for a tokenizer. Raises ModelError when it has no padding token."""
        return cls(objective, seed, padding_of(tokenizer), special_ids(tokenizer))

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` (batch, length), `perm_mask` (batch, query, key) with 1 where a key is not
        seen, `target_mapping` (batch, asked, length) and `labels` (batch, asked), -100 where a row asks for fewer."""
        ids, real = stacked([example["input_ids"] for example in examples], self.pad_id)
        draws = draws_of(examples)
        order = uniforms(self.seed, ORDER, draws, ids.shape[1])  # a token's place in the order: the higher, the later
        asked = self.asked(order, draws, real & ~self.special[ids])
        place, there = _places(asked)
        mapping = (np.arange(ids.shape[1])[None, None, :] == place[:, :, None]) & there[:, :, None]
        labels = np.where(there, np.take_along_axis(ids, place, axis=1), IGNORED)
        return tensors(
            input_ids=ids, attention_mask=real.astype(np.int64), perm_mask=hidden(order, asked),
            target_mapping=mapping.astype(np.float32), labels=labels,
        )

    def asked(
        self, order: npt.NDArray[np.float64], draws: npt.NDArray[np.int64], candidates: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Which tokens are named (batch, length): one in k of the candidates, at least one."""
        late = np.where(candidates, order, -1.0)
        rank = np.argsort(np.argsort(-late, axis=1, kind="stable"), axis=1, kind="stable")
        chosen: npt.NDArray[np.bool_]
        if self.objective.max_span_length == 1:
            chosen = candidates & (rank < np.maximum(candidates.sum(1) // self.objective.k, 1)[:, None])
        else:
            chosen = candidates & self.spans(draws, order.shape[1])
            chosen |= candidates & (rank == 0) & ~chosen.any(1, keepdims=True)
        return chosen

    def spans(self, draws: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.bool_]:
        """Runs of n neighbours, each somewhere in a context of its own of k x n tokens, n drawn evenly (batch, length)."""
        k, most = self.objective.k, self.objective.max_span_length
        contexts = -(-length // k)
        sizes = 1 + (uniforms(self.seed, SPAN_LENGTH, draws, contexts) * most).astype(np.int64)
        free = (uniforms(self.seed, SPAN_START, draws, contexts) * ((k - 1) * sizes + 1)).astype(np.int64)
        starts = np.cumsum(k * sizes, axis=1) - k * sizes + free
        marks = np.zeros((len(draws), length + most + 1), dtype=np.int64)
        rows = np.arange(len(draws))[:, None]
        np.add.at(marks, (rows, np.minimum(starts, length)), 1)
        np.add.at(marks, (rows, np.minimum(starts + sizes, length)), -1)
        return np.asarray(np.cumsum(marks, axis=1)[:, :length] > 0)


def hidden(order: npt.NDArray[np.float64], asked: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """1 where a key is not seen (batch, query, key): asked keys, by all that are not asked or do not come later."""
    later = asked[:, :, None] & (order[:, :, None] > order[:, None, :])
    return (asked[:, None, :] & ~later).astype(np.float32)


def _places(asked: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(the asked positions of each row in their order, and whether there is one, both (batch, most asked))."""
    counts = asked.sum(1)
    place = np.argsort(~asked, axis=1, kind="stable")[:, : max(int(counts.max()), 1)]
    return place, np.arange(place.shape[1])[None, :] < counts[:, None]
