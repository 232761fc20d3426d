"""Sequences of unequal lengths as two arrays or padded, and data that one process makes and all processes map.

A token in a list of Python takes 36 bytes, here four. Where several processes share a training, the main one encodes
the rows and writes what came out: its arrays lie one after another in a file that every process maps, so that a machine
holds them once, in memory that it may take back. Pickle's protocol 5 (PEP 574) names the arrays; a process maps what
its own main process has just written, and nothing else.
"""

from __future__ import annotations

import mmap
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from pipelines.core.interfaces import Context

Made = TypeVar("Made")
SHARED = "encoded"
"""In a stage's folder, what its processes map."""
VISIBLE_SECONDS = 60.0
"""A file system that hosts share may show what another one wrote a while later."""
ALIGNED = 64
"""Bytes that arrays in a file begin at multiples of."""


class Ragged(Sequence[list[int]]):
    """Sequences of integers, each a list when it is looked at."""

    def __init__(
        self, values: npt.NDArray[np.int32], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> None:
        """Sequence i is `values[starts[i]:ends[i]]`."""
        self.values, self.starts, self.ends = values, starts, ends

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | npt.NDArray[np.integer[Any]]]) -> Self:
        """Of sequences of any kind."""
        arrays = [np.asarray(row, dtype=np.int32) for row in rows]
        ends = np.cumsum([len(each) for each in arrays], dtype=np.int64)
        starts = np.concatenate([np.zeros(1, dtype=np.int64), ends])[: len(arrays)]
        return cls(np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32), starts, ends)

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Self:
        """The sequences of all parts, one after another."""
        sizes = [len(part.values) for part in parts]
        before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])
        together = [(part.starts + low, part.ends + low) for part, low in zip(parts, before.tolist(), strict=False)]
        nothing = np.zeros(0, dtype=np.int64)
        return cls(
            np.concatenate([np.zeros(0, dtype=np.int32), *(part.values for part in parts)]),
            np.concatenate([nothing, *(starts for starts, _ in together)]),
            np.concatenate([nothing, *(ends for _, ends in together)]),
        )

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Of each sequence."""
        return self.ends - self.starts

    def take(self, chosen: npt.NDArray[np.int64]) -> Self:
        """The sequences at these positions, in that order; their values are not copied."""
        return type(self)(self.values, self.starts[chosen], self.ends[chosen])

    def array(self, position: int) -> npt.NDArray[np.int32]:
        """A sequence as a view of the values."""
        return self.values[self.starts[position] : self.ends[position]]

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, position: int) -> list[int]: ...

    @overload
    def __getitem__(self, position: slice) -> list[list[int]]: ...

    def __getitem__(self, position: int | slice) -> list[int] | list[list[int]]:
        if isinstance(position, slice):
            return [self[place] for place in range(*position.indices(len(self)))]
        found: list[int] = self.array(position).tolist()
        return found

    def __iter__(self) -> Iterator[list[int]]:
        return (self[place] for place in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


def padded(
    rows: Iterable[npt.ArrayLike],
    fill: int,
    on_the_left: bool = False,
    pad_to_multiple_of: int | None = None,
    at_most: int | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The rows, filled up with `fill` on the right or on the left, and 1 where they are real, both (rows, length): as
    long as the longest row, or as `length_of_batch` says."""
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    lengths = np.fromiter((len(row) for row in arrays), dtype=np.int64, count=len(arrays))
    length = length_of_batch(int(lengths.max(initial=0)), pad_to_multiple_of, at_most)
    real = np.arange(length)[None, :] < lengths[:, None]
    real = real[:, ::-1] if on_the_left else real
    ids = np.full(real.shape, fill, dtype=np.int64)
    ids[real] = np.concatenate(arrays)
    return ids, real.astype(np.int64, order="C")


def length_of_batch(longest: int, pad_to_multiple_of: int | None = None, at_most: int | None = None) -> int:
    """`longest`, or the next multiple of `pad_to_multiple_of`, or `at_most` where that is nearer."""
    if not pad_to_multiple_of:
        return longest
    rounded = -(-longest // pad_to_multiple_of) * pad_to_multiple_of
    return max(longest, rounded if at_most is None else min(rounded, at_most))


def padded_tensors(
    rows: Iterable[npt.ArrayLike],
    fill: int,
    on_the_left: bool = False,
    device: Any = "cpu",
    pad_to_multiple_of: int | None = None,
    at_most: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `padded` gives, on a device."""
    import torch

    ids, real = padded(rows, fill, on_the_left, pad_to_multiple_of, at_most)
    return torch.from_numpy(ids).to(device), torch.from_numpy(real).to(device)


def made_once(context: Context, name: str, make: Callable[[], Made]) -> Made:
    """What `make` gives: where several processes share the stage, made by the main one and mapped by all of them.

    Called on every process, in the same order, with a `name` of its own within the stage.
    """
    if context.world.size == 1:
        return make()
    file = context.folder / SHARED / name
    if context.world.is_main:
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file, make())
    context.barrier()
    limit = time.monotonic() + VISIBLE_SECONDS
    while not file.exists() and time.monotonic() < limit:
        time.sleep(0.05)
    made: Made = mapped(file)
    return made


def write(file: Path, made: Any) -> None:
    """Put an object into a file, its arrays behind it."""
    buffers: list[pickle.PickleBuffer] = []
    words = pickle.dumps(made, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    places, place = [], _aligned(len(words))
    for view in views:
        places.append((place, view.nbytes))
        place = _aligned(place + view.nbytes)
    temporary = file.with_name(f"{file.name}.tmp")
    with open(temporary, "wb") as out:
        out.write(words)
        for (start, _), view in zip(places, views, strict=True):
            out.write(bytes(start - out.tell()))
            out.write(view)
        start = out.tell()
        out.write(pickle.dumps((len(words), places)))
        out.write(start.to_bytes(8, "little"))
    temporary.replace(file)


def mapped(file: Path) -> Any:
    """The object that `write` put there; its arrays are the file's pages, and cannot be written."""
    with open(file, "rb") as found:
        pages = mmap.mmap(found.fileno(), 0, access=mmap.ACCESS_READ)
    view = memoryview(pages)
    start = int.from_bytes(view[-8:], "little")
    length, places = pickle.loads(view[start:-8])
    return pickle.loads(view[:length], buffers=[view[begin : begin + size] for begin, size in places])


def _aligned(place: int) -> int:
    return -(-place // ALIGNED) * ALIGNED
