"""Pairs of answers as a reward model reads them: both sides in one batch, the chosen rows first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipelines.data.columns import Columns
from pipelines.data.preferences import PreferenceRows
from pipelines.data.scored_texts import Reading, Together, encoded
from pipelines.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

SIDES = ("chosen", "rejected")


@dataclass(frozen=True)
class ScoredPairs:
    """Tokenised pairs, as columns. Those whose two sides are the same within the limit are not among them."""

    chosen: Columns
    rejected: Columns
    index: list[int]
    """Row numbers in the file."""
    margins: list[float] | None
    """By how much each chosen answer is better; None where that is not to be learnt."""
    probabilities: list[float] | None = None
    """How likely each chosen answer is the better one; None where that is not to be learnt."""
    truncated: int = 0
    """Pairs of which a side lost the beginning of its prompt or the end of its answer."""
    left_out: tuple[int, ...] = ()
    """Row numbers of the pairs whose sides are the same within the limit."""

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each pair's longer side."""
        return np.maximum(self.chosen.lengths, self.rejected.lengths)

    def __getitem__(self, position: int) -> dict[str, Any]:
        example: dict[str, Any] = {side: getattr(self, side)[position] for side in SIDES} | {"index": self.index[position]}
        beside = {"margin": self.margins, "probability": self.probabilities}
        return example | {name: column[position] for name, column in beside.items() if column is not None}

    def select(self, positions: Sequence[int] | npt.NDArray[np.int64]) -> ScoredPairs:
        """The pairs at `positions`, in that order. Counts stay those of the whole."""
        places = np.asarray(positions, dtype=np.int64)
        margins, chances = (None if column is None else [column[at] for at in places.tolist()] for column in (self.margins, self.probabilities))
        index = [self.index[at] for at in places.tolist()]
        return replace(self, chosen=self.chosen.select(places), rejected=self.rejected.select(places), index=index, margins=margins, probabilities=chances)


def encode_scored_pairs(
    tokenizer: Any, rows: PreferenceRows, reading: Reading, stops: Sequence[int] = (), with_margins: bool = True,
    with_probabilities: bool = False, keep_all: bool = False,
) -> ScoredPairs:  # fmt: skip
    """Tokens of both sides of every pair. `keep_all` keeps those that are the same within the limit: they are scored as ties.

    Raises DataError where no pair is left.
    """
    (chosen, cut), (rejected, also_cut) = (encoded(tokenizer, side, reading, stops) for side in (rows.chosen, rows.rejected))
    margins = list(rows.margins) if with_margins and rows.margins is not None else None
    chances = list(rows.probabilities) if with_probabilities and rows.probabilities is not None else None
    found = ScoredPairs(chosen, rejected, list(rows.index), margins, chances, int((cut | also_cut).sum()))
    if keep_all:
        return found
    kept = [at for at in range(len(found)) if chosen.input_ids[at] != rejected.input_ids[at]]
    if not kept and len(found):
        raise DataError(f"no pair of the {len(found)} rows is left: within {reading.max_length} tokens their answers do not differ; raise max_length")
    if len(kept) == len(found):
        return found
    missing = sorted(set(range(len(found))) - set(kept))
    return replace(found.select(kept), left_out=tuple(rows.index[at] for at in missing))


@dataclass(frozen=True)
class ScoredTogether:
    """The collator: of B pairs 2B rows, first the chosen ones, then the rejected ones."""

    together: Together

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`labels` (B,), 0 as the first of the two is the better one; the rows (2B, length); `margin` and `probability` (B,) where there are such."""
        import torch

        rows = self.together([example[side] for side in SIDES for example in examples])
        batch = {"labels": torch.zeros(len(examples), dtype=torch.int64), **rows}
        beside = [name for name in ("margin", "probability") if name in examples[0]]
        return batch | {name: torch.tensor([example[name] for example in examples], dtype=torch.float32) for name in beside}
