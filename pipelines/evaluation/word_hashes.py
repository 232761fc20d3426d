"""Texts as hashed words, and runs of words as hashes, a hundred megabytes in seconds.

A word is a run of ASCII letters and digits and of characters beyond ASCII, in lower case; everything else separates words.
All words of many texts are hashed at once: the hash of a run of bytes is a polynomial in them, so each is a difference of
two running sums (Karp and Rabin 1987, "Efficient randomized pattern-matching algorithms"), modulo 2^64 and then mixed.
Two different runs get the same 64-bit hash about once in 10^19 pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
BATCH = 1 << 20
"""Bytes that are hashed at once."""
BASE = 0x9E3779B97F4A7C15
"""An odd number: it has an inverse modulo 2^64."""
ENDS = "\0"
"""Stands between two texts; a text that holds it is read as if a space stood there."""


@dataclass(frozen=True)
class Words:
    """The words of some texts, one after another."""

    hashes: Hashes
    """(words,)"""
    starts: NDArray[np.int64]
    """Number of the first word of each text, and behind the last the number of words (texts + 1,)."""

    def whole(self) -> Hashes:
        """One hash a text, of all its words in order (texts,). Texts that differ in case or punctuation alone share theirs."""
        lengths = np.diff(self.starts)
        return _mixed(_sums(self.hashes, self.starts[:-1], self.starts[1:]) + lengths.astype(np.uint64))

    def runs(self, length: int) -> tuple[Hashes, NDArray[np.int64]]:
        """(hash, number of the first word) of every run of so many words within one text."""
        lengths = np.diff(self.starts)
        count = np.maximum(lengths - length + 1, 0)
        first = np.repeat(self.starts[:-1] - np.concatenate([[0], np.cumsum(count)[:-1]]), count) + np.arange(count.sum())
        found = np.zeros(len(first), dtype=np.uint64)
        for step in range(length):
            found = found * np.uint64(BASE) + self.hashes[first + step]
        return _mixed(found), first


def words_of(texts: Sequence[str]) -> Words:
    """The words of the texts."""
    if not texts:
        return Words(np.zeros(0, dtype=np.uint64), np.zeros(1, dtype=np.int64))
    joined = ENDS.join(text.replace(ENDS, " ") for text in texts).lower().encode("utf-8", "replace")
    raw = np.frombuffer(joined, dtype=np.uint8)
    inside = _word_bytes()[raw]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    hashes = _mixed(_sums(raw.astype(np.uint64) + np.uint64(1), begins, ends))
    borders = np.flatnonzero(raw == 0)
    starts = np.concatenate([[0], np.searchsorted(begins, borders), [len(begins)]])
    return Words(hashes, starts.astype(np.int64))


def batched(texts: Iterable[str], size: int = BATCH) -> Iterator[list[str]]:
    """The texts in lists of about `size` characters, so that memory does not grow with their number."""
    batch: list[str] = []
    held = 0
    for text in texts:
        batch.append(text)
        held += len(text)
        if held >= size:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _sums(values: Hashes, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Hashes:
    """The polynomial hash of each slice of `values`, whose coefficients begin at 1 wherever it stands."""
    powers, inverses = _powers(len(values))
    running = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(values * powers[: len(values)], dtype=np.uint64)])
    found: Hashes = (running[ends] - running[begins]) * inverses[begins]
    return found


def _mixed(values: Hashes) -> Hashes:
    """Every bit of the result depends on every bit of the value: Stafford's variant 13 of MurmurHash3's finaliser."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Hashes = values ^ (values >> np.uint64(31))
    return found


_KEPT: dict[str, Hashes] = {}


def _powers(count: int) -> tuple[Hashes, Hashes]:
    """(BASE^0 … BASE^count, the same of its inverse), modulo 2^64."""
    if "powers" not in _KEPT or len(_KEPT["powers"]) <= count:
        size = max(count + 1, 1 << 16)
        for name, base in (("powers", BASE), ("inverses", pow(BASE, -1, 1 << 64))):
            factors = np.full(size, base, dtype=np.uint64)
            factors[0] = 1
            _KEPT[name] = np.cumprod(factors, dtype=np.uint64)
    return _KEPT["powers"], _KEPT["inverses"]


@cache
def _word_bytes() -> NDArray[np.bool_]:
    """Whether each byte belongs to a word (256,)."""
    found = np.zeros(256, dtype=bool)
    for first, last in ((ord("0"), ord("9")), (ord("a"), ord("z")), (0x80, 0xFF)):
        found[first : last + 1] = True
    return found
