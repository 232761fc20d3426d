"""Models of one and of two tokens: what a language model must beat to have learnt more than frequencies.

Both are fitted on the rows that the measured model was trained on, in the same tokens, and are smoothed so that no
token has probability zero: interpolated Kneser-Ney (Kneser and Ney 1995, "Improved Backing-Off for M-gram Language
Modeling"; Chen and Goodman 1999, "An Empirical Study of Smoothing Techniques for Language Modeling", section 2.7),
the lowest order interpolated with the uniform distribution over the vocabulary. The discount is Ney's estimate n1 /
(n1 + 2 n2) from how many entries were seen once and twice (Chen and Goodman, equation 15).

The token before a document's first is the end of another document.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import DataError
from pipelines.core.files import made_once, whole_file

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NO_ESTIMATE = 0.5
"""The discount where nothing was seen once, so that it cannot be estimated."""


@dataclass(frozen=True)
class NGrams:
    """Counts of tokens and of neighbours."""

    vocabulary: int
    """How many different tokens there may be."""
    pairs: Ints
    """Neighbours that were seen, as left × vocabulary + right, in rising order (pairs,)."""
    counts: Ints
    """How often (pairs,)."""

    @cached_property
    def unigram(self) -> Floats:
        """Probability of each token (vocabulary,)."""
        seen = np.bincount(self.pairs % self.vocabulary, weights=self.counts, minlength=self.vocabulary)
        return discounted(seen.astype(np.int64))

    @cached_property
    def _continuation(self) -> Floats:
        """Probability of each token by the number of different tokens it was seen after (vocabulary,)."""
        return discounted(np.bincount(self.pairs % self.vocabulary, minlength=self.vocabulary))

    @cached_property
    def _contexts(self) -> tuple[Ints, Ints]:
        """How often each token was seen before another, and before how many different ones (vocabulary,)."""
        left = self.pairs // self.vocabulary
        often = np.bincount(left, weights=self.counts, minlength=self.vocabulary).astype(np.int64)
        return often, np.bincount(left, minlength=self.vocabulary)

    def unigram_bits(self, tokens: Ints) -> Floats:
        """-log2 of the probability of each token."""
        bits: Floats = -np.log2(self.unigram[tokens])
        return bits

    def bigram_bits(self, left: Ints, tokens: Ints) -> Floats:
        """-log2 of the probability of each token after the one on its left."""
        wanted = left * self.vocabulary + tokens
        place = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
        count = np.where(self.pairs[place] == wanted, self.counts[place], 0)
        often, kinds = (values[left] for values in self._contexts)
        less = discount(self.counts)
        left_counts = np.maximum(often, 1)
        lower = np.where(often > 0, less * kinds / left_counts, 1.0)
        bits: Floats = -np.log2(np.maximum(count - less, 0) / left_counts + lower * self._continuation[tokens])
        return bits


def discount(counts: Ints) -> float:
    """What is taken from every count that is not zero, between 0 and 1."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once / (once + 2 * twice) if once and twice else NO_ESTIMATE


def discounted(counts: Ints) -> Floats:
    """Probabilities of all entries: discounted counts, what was taken shared out evenly."""
    less, total = discount(counts), counts.sum()
    shared = less * np.count_nonzero(counts) / total
    probabilities: Floats = np.maximum(counts - less, 0) / total + shared / len(counts)
    return probabilities


def fit(streams: Iterable[tuple[Ints, Ints]], vocabulary: int, end: int) -> NGrams:
    """Counts of chunks of documents: (tokens, where each document begins). `end` stands before each document."""
    pairs, counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    for tokens, starts in streams:
        if len(tokens):
            new_pairs, often = np.unique(left_neighbours(tokens, starts, end) * vocabulary + tokens, return_counts=True)
            pairs, counts = _added(pairs, counts, new_pairs, often)
    if not len(pairs):
        raise DataError("the training rows hold no token to fit the unigram and the bigram model on")
    return NGrams(vocabulary, pairs, counts)


def left_neighbours(tokens: Ints, starts: Ints, end: int) -> Ints:
    """The token before each one; `end` before the first of each document."""
    left = np.roll(tokens, 1)
    left[starts[starts < len(tokens)]] = end
    return left


def _added(pairs: Ints, counts: Ints, new_pairs: Ints, often: Ints) -> tuple[Ints, Ints]:
    every, place = np.unique(np.concatenate([pairs, new_pairs]), return_inverse=True)
    sums = np.zeros(len(every), dtype=np.int64)
    np.add.at(sums, place, np.concatenate([counts, often]))
    return every, sums


def kept(
    cache: Path, identity: Mapping[str, object], streams: Iterable[tuple[Ints, Ints]], vocabulary: int, end: int
) -> NGrams:
    """As `fit`, kept in a file of `cache` that `identity` (tokenizer, data, rows) names."""
    name = hashlib.sha256(json.dumps([identity, vocabulary, end], sort_keys=True).encode()).hexdigest()[:32]
    file = cache / f"ngrams-{name}.npz"

    def load() -> NGrams | None:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return NGrams(vocabulary, arrays["pairs"], arrays["counts"])
        except (OSError, ValueError, KeyError, EOFError):
            return None

    def make() -> None:
        ngrams = fit(streams, vocabulary, end)
        with whole_file(file) as temporary, open(temporary, "wb") as out:
            np.savez(out, pairs=ngrams.pairs, counts=ngrams.counts)

    return made_once(file, load, make)
