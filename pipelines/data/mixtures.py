"""Several texts as one data set, each with its share of the examples, in the order in which they are learnt from.

Draw d of a run is example j of source s, by arithmetic alone. Of every WINDOW draws each source gets its share, rounded
up or down by chance so that shares hold in the long run (systematic sampling: one random offset a window), and their
order within the window is random. A source that runs out begins again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.data.packing import Blocks
from pipelines.data.randomness import permuted, uniforms
from pipelines.data.sentences import Spans

WINDOW = 1024
"""Draws whose shares are exact to one example."""
OFFSET, ORDER = 0x0FF5, 0x0DE5
"""Streams of random numbers: how shares are rounded in a window of draws, and the order in it."""
PASSES = 0x9A55 << 32
"""Streams of random numbers: the order of a source's examples in each of its passes."""
AT_ONCE = 1024
"""Numbers that are permuted at a time."""

Ints = npt.NDArray[np.int64]


class ExampleSource(Protocol):
    """Examples by their number, without an end."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Example `number`, from 0 on."""

    def tokens(self, examples: int) -> int:
        """Tokens that the first `examples` take from the text."""

    def epochs(self, examples: int) -> float:
        """How often the first `examples` go through the source."""

    def documents(self, examples: int) -> int | None:
        """How many documents from the first one on the first `examples` may stem from; None where it is all of them."""

    def close(self) -> None:
        """No more is asked for."""


class ShuffledExamples:
    """Mapped examples without an end: pass after pass, each in an order of its own that is never held.

    A block takes `length` tokens from the text.
    """

    def __init__(self, examples: Blocks | Spans, length: int, seed: int, source: int = 0) -> None:
        self.examples, self._length, self._seed, self._source = examples, length, seed, source
        self._from, self._places = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.examples)

    def places(self, first: int, last: int) -> Ints:
        """Which examples the numbers from `first` to before `last` are."""
        numbers = np.arange(first, last)
        passes, inside = numbers // len(self), numbers % len(self)
        places = np.empty(len(numbers), dtype=np.int64)
        for each in np.unique(passes):
            stream = PASSES + (self._source << 24) + int(each)
            places[passes == each] = permuted(inside[passes == each], len(self), self._seed, stream)
        return places

    def __getitem__(self, number: int) -> dict[str, Any]:
        first = number - number % AT_ONCE
        if first != self._from:
            self._places, self._from = self.places(first, first + AT_ONCE), first
        return self.examples[int(self._places[number - first])]

    def tokens(self, examples: int) -> int:
        if isinstance(self.examples, Blocks):
            return examples * self._length
        lengths, start = self.examples.lengths, examples - examples % len(self)
        parts = [
            lengths[self.places(at, min(at + (1 << 16), examples))].sum() for at in range(start, examples, 1 << 16)
        ]
        return start // len(self) * int(lengths.sum()) + int(sum(parts))

    def epochs(self, examples: int) -> float:
        return examples / len(self)

    def documents(self, examples: int) -> int | None:
        return None

    def close(self) -> None:
        """Nothing is held but the map."""


@dataclass(frozen=True)
class Drawn:
    """What was drawn from a source."""

    examples: int
    tokens: int
    epochs: float
    documents: int | None


class Mixture:
    """Examples of several sources by draw. `weights` are their shares up to a factor; `length` is what counts as an
    epoch."""

    in_order = True
    """The draws of a run are taken one after another: what is random about their order was decided here."""

    def __init__(self, sources: Sequence[ExampleSource], weights: Sequence[float], seed: int, length: int) -> None:
        self.sources, self._seed, self._length = sources, seed, length
        shares = np.cumsum(np.asarray(weights, dtype=np.float64))
        self._edges = WINDOW * shares[:-1] / shares[-1]
        self._window, self._which, self._numbers = -1, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._before: tuple[int, Ints] = (0, np.zeros(len(sources), dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, draw: int) -> dict[str, Any]:
        source, number = self.place(draw)
        return self.sources[source][number]

    def place(self, draw: int) -> tuple[int, int]:
        """(source, number of the example in it) of a draw."""
        if len(self.sources) == 1:
            return 0, draw
        window, at = divmod(draw, WINDOW)
        if window != self._window:
            ends = self._ends(window, window + 1)[0]
            luck = uniforms(self._seed, ORDER, [window], WINDOW)[0]
            which = np.searchsorted(ends, np.arange(WINDOW), side="right")[np.argsort(luck, kind="stable")]
            numbers = np.empty(WINDOW, dtype=np.int64)
            for source, before in enumerate(self._counts_before(window)):
                own = which == source
                numbers[own] = before + np.arange(own.sum())
            self._window, self._which, self._numbers = window, which, numbers
        return int(self._which[at]), int(self._numbers[at])

    def drawn(self, draws: int) -> list[Drawn]:
        """What the first `draws` took from each source."""
        counts = self._counts(draws)
        return [
            Drawn(count, source.tokens(count), source.epochs(count), source.documents(count))
            for source, count in zip(self.sources, counts, strict=True)
        ]

    def close(self) -> None:
        """No more is asked for."""
        for source in self.sources:
            source.close()

    def _counts(self, draws: int) -> list[int]:
        """Examples of each source among the first `draws`."""
        if len(self.sources) == 1:
            return [draws]
        window, some = divmod(draws, WINDOW)
        self.place(draws)  # looks at the window
        inside = np.bincount(self._which[:some], minlength=len(self.sources))
        counts: list[int] = (self._counts_before(window) + inside).tolist()
        return counts

    def _ends(self, first: int, last: int) -> Ints:
        """Behind which of its WINDOW points each source but the last ends, of windows from `first` to before `last`."""
        offsets = uniforms(self._seed, OFFSET, np.arange(first, last), 1)
        ends: Ints = np.clip(np.ceil(self._edges[None, :] - offsets), 0, WINDOW).astype(np.int64)
        return ends

    def _counts_before(self, window: int) -> Ints:
        """Examples of each source in the windows before this one."""
        at, counts = self._before if self._before[0] <= window else (0, np.zeros(len(self.sources), dtype=np.int64))
        while at < window:
            until = min(window, at + (1 << 16))
            ends = self._ends(at, until)
            edges = np.hstack([np.zeros((len(ends), 1), np.int64), ends, np.full((len(ends), 1), WINDOW)])
            counts, at = counts + np.diff(edges, axis=1).sum(axis=0), until
        self._before = (at, counts)
        return counts
