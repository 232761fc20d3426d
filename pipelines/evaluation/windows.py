"""Held-out documents as windows in which every token is predicted exactly once.

A window is as long as what the model was trained on. It reads the token before each one that it predicts, and for the
first of a document the end of another. The next window moves on by `stride` tokens and predicts those only: a smaller
stride shows them more of what came before, and costs more windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.data.documents import Documents

Ints = npt.NDArray[np.int64]
IGNORED = -100
"""The label of a position that is not asked for."""


@dataclass(frozen=True)
class Batch:
    """Some windows, filled up on the right."""

    input_ids: Ints
    """(windows, length)"""
    real: npt.NDArray[np.bool_]
    """Where there is text (windows, length)."""
    labels: Ints
    """The token that each position predicts, -100 where it is predicted by another window (windows, length)."""
    places: Ints
    """Which token of the documents each label is (windows, length)."""
    documents: Ints
    """(windows,)"""


@dataclass(frozen=True)
class Windows:
    """All windows of some documents."""

    stream: Ints
    """Every document's tokens, behind the end of another document (tokens + documents,)."""
    first: Ints
    """Where each window begins in the stream (windows,)."""
    last: Ints
    """One past where it ends (windows,)."""
    asked: Ints
    """How many of its last positions it predicts from (windows,)."""
    documents: Ints
    """(windows,)"""

    def __len__(self) -> int:
        return len(self.first)

    def batch(self, low: int, high: int, padding: int) -> Batch:
        """The windows from `low` to `high`."""
        first, last = self.first[low:high, None], self.last[low:high, None]
        place = first + np.arange((last - first).max())[None, :]
        real = place < last
        asked = real & (place >= last - self.asked[low:high, None])
        place = np.minimum(place, len(self.stream) - 2)
        documents = self.documents[low:high]
        return Batch(
            np.where(real, self.stream[place], padding), real, np.where(asked, self.stream[place + 1], IGNORED),
            place - documents[:, None], documents,
        )  # fmt: skip


def rolling(documents: Documents, length: int, stride: int, end: int) -> Windows:
    """Windows of at most `length` tokens, `stride` apart. `end` stands before each document."""
    stream = np.insert(documents.tokens, documents.starts[:-1], end)
    sizes = np.diff(documents.starts)
    counts = 1 + -(-np.maximum(sizes - length, 0) // stride)
    document = np.repeat(np.arange(len(documents)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    size = sizes[document]
    until = np.minimum(length + number * stride, size)
    asked = until - np.where(number > 0, length + (number - 1) * stride, 0)
    base = documents.starts[document] + document
    return Windows(stream, base + np.maximum(until - length, 0), base + until, asked, document)


@dataclass(frozen=True)
class Pieces:
    """Documents joined and cut as for training: rows of equal length, what does not fill one left out."""

    rows: Ints
    """(pieces, length)"""
    before: Ints
    """The token before each piece (pieces,)."""
    documents: Ints
    """The document in which each piece begins (pieces,)."""


def pieces(documents: Documents, length: int, end: int) -> Pieces:
    """Pieces of `length` tokens of the documents, each document followed by `end`."""
    stream = np.insert(documents.tokens, documents.starts[1:], end)
    count = len(stream) // length
    begins = np.arange(count) * length
    ends = documents.starts[1:] + np.arange(1, len(documents) + 1)
    before = np.where(begins > 0, stream[begins - 1], end) if count else begins
    return Pieces(stream[: count * length].reshape(count, length), before, np.searchsorted(ends, begins, side="right"))
