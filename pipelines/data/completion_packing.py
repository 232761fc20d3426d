"""Several dialogues in one block, none of which sees another.

Blocks are filled by best fit: the longest first, each into the fullest block that has room for it (Ding et al. 2024,
"Fewer Truncations Improve Language Modeling", section 3.2, arxiv.org/abs/2404.10830). No dialogue is cut for it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipelines.data.completions import IGNORED, Completions

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Packs:
    """Blocks of dialogues."""

    examples: Completions
    members: list[list[int]]
    """Positions of the dialogues of each block."""
    lengths: npt.NDArray[np.int64]
    """Tokens of each block."""

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, position: int) -> dict[str, Any]:
        return {"parts": [self.examples[member] for member in self.members[position]]}

    def select(self, positions: Sequence[int] | npt.NDArray[np.int64]) -> Packs:
        """The blocks at `positions`, in that order."""
        chosen = np.asarray(positions, dtype=np.int64)
        return Packs(self.examples, [self.members[place] for place in chosen.tolist()], self.lengths[chosen])


def pack_completions(examples: Completions, block: int) -> Packs:
    """Blocks of at most `block` tokens that hold every example once, the same for the same examples."""
    rooms: list[tuple[int, int]] = []  # (room that is left, block), in order
    members: list[list[int]] = []
    for position in np.argsort(-examples.lengths, kind="stable").tolist():
        length = int(examples.lengths[position])
        place = bisect_left(rooms, (length, -1))
        if place == len(rooms):
            members.append([position])
            insort(rooms, (block - length, len(members) - 1))
            continue
        room, number = rooms.pop(place)
        members[number].append(position)
        insort(rooms, (room - length, number))
    lengths = [int(examples.lengths[each].sum()) for each in members]
    return Packs(examples, members, np.asarray(lengths, dtype=np.int64))


def numbered(packs: Sequence[dict[str, Any]], key: str, fill: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows of `key` one after another, and the number of the dialogue that each token is of, -1 beyond the last, both
    (batch, length)."""
    rows = [np.concatenate([np.asarray(part[key], dtype=np.int64) for part in each["parts"]]) for each in packs]
    owners = [np.repeat(np.arange(len(each["parts"])), [len(part[key]) for part in each["parts"]]) for each in packs]
    longest = max(len(row) for row in rows)
    values, numbers = np.full((len(rows), longest), fill, dtype=np.int64), np.full((len(rows), longest), -1, dtype=np.int64)
    for place, (row, owner) in enumerate(zip(rows, owners, strict=True)):
        values[place, : len(row)], numbers[place, : len(owner)] = row, owner
    return values, numbers


def named_next(labels: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Each label at the place before it, from which it is named, unless that is in another dialogue: (batch, length)."""
    moved = np.full_like(labels, IGNORED)
    moved[:, :-1] = np.where(numbers[:, 1:] == numbers[:, :-1], labels[:, 1:], IGNORED)
    return moved


def as_tensors(**arrays: npt.NDArray[Any]) -> dict[str, Tensor]:
    """The arrays as a batch."""
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}
