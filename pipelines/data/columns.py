"""Tokenised rows as columns: a list or an array for each thing that is known of a row, so that rows are chosen by their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What is known of the rows of one split; what is neither a list nor an array is said of all of them."""

    input_ids: list[Any]
    """Token ids of each row."""
    token_type_ids: list[Any] | None
    """Which of the two texts a token belongs to; None where the model has no segments."""
    lengths: npt.NDArray[np.int64]
    """Tokens of each row."""
    truncated: int
    """Rows that were longer than the limit and lost their end."""

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, position: int) -> dict[str, Any]:
        example: dict[str, Any] = {"input_ids": self.input_ids[position]}
        if self.token_type_ids is not None:
            example["token_type_ids"] = self.token_type_ids[position]
        return example

    def select(self, positions: Sequence[int] | npt.NDArray[np.int64]) -> Self:
        """The rows at `positions`, in that order. Counts stay those of the whole."""
        chosen = np.asarray(positions, dtype=np.int64)
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        picked: dict[str, Any] = {name: column[chosen] for name, column in columns.items() if isinstance(column, np.ndarray)}
        places = chosen.tolist()
        picked |= {name: [column[place] for place in places] for name, column in columns.items() if isinstance(column, list)}
        return replace(self, **picked)


@dataclass(frozen=True, kw_only=True)
class Parts(Columns):
    """Rows that are read in several parts where they are long. Most are one part."""

    rows: npt.NDArray[np.int64]
    """The row that each part belongs to: its position, from 0."""

    @property
    def index(self) -> list[int]:
        """The row of each part: parts of one row are set aside together."""
        return [int(row) for row in self.rows]
