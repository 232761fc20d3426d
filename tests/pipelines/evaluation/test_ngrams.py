"""Unigram and bigram probabilities equal the formulas written out with plain dictionaries."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import DataError
from pipelines.evaluation import ngrams

VOCABULARY, END = 7, 3
DOCUMENTS = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=12), min_size=1, max_size=5).filter(any)


def streams(documents: list[list[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Two chunks of documents."""
    chunks = [documents[:2], documents[2:]]
    return [
        (np.asarray([token for each in chunk for token in each], dtype=np.int64), np.cumsum([0, *map(len, chunk)])[:-1])
        for chunk in chunks
    ]


class Slow:
    """Interpolated Kneser-Ney, equation by equation."""

    def __init__(self, documents: list[list[int]]) -> None:
        self.pairs = Counter(pair for each in documents for pair in zip([END, *each], each, strict=False))
        self.tokens = Counter(token for each in documents for token in each)
        self.continuations = Counter(right for _, right in self.pairs)

    @staticmethod
    def discount(counts: Counter) -> float:
        once, twice = (sum(count == number for count in counts.values()) for number in (1, 2))
        return once / (once + 2 * twice) if once and twice else 0.5

    def lowest(self, counts: Counter, token: int) -> float:
        less, total = self.discount(counts), sum(counts.values())
        return max(counts[token] - less, 0) / total + less * len(counts) / total / VOCABULARY

    def unigram(self, token: int) -> float:
        return self.lowest(self.tokens, token)

    def bigram(self, left: int, token: int) -> float:
        lower = self.lowest(self.continuations, token)
        often = sum(count for (first, _), count in self.pairs.items() if first == left)
        if not often:
            return lower
        less = self.discount(self.pairs)
        kinds = sum(first == left for first, _ in self.pairs)
        return max(self.pairs[left, token] - less, 0) / often + less * kinds / often * lower


@settings(deadline=None)
@given(DOCUMENTS)
def test_probabilities_equal_the_formulas(documents: list[list[int]]):
    slow, fast = Slow(documents), ngrams.fit(streams(documents), VOCABULARY, END)
    every = np.arange(VOCABULARY)
    assert 2.0 ** -fast.unigram_bits(every) == pytest.approx([slow.unigram(token) for token in every])
    for left in range(VOCABULARY):
        found = 2.0 ** -fast.bigram_bits(np.full(VOCABULARY, left), every)
        assert found == pytest.approx([slow.bigram(left, token) for token in every])
        assert found.sum() == pytest.approx(1)
        assert (found > 0).all()
    assert fast.unigram.sum() == pytest.approx(1)


def test_a_small_text_by_hand():
    # "0 1 0 1 0 2": pairs 3→0, 0→1 twice, 1→0 twice, 0→2; two pairs once and two twice: discount 2 / (2 + 4) = 1/3
    fitted = ngrams.fit([(np.asarray([0, 1, 0, 1, 0, 2]), np.asarray([0]))], 4, 3)
    # continuations: 0 after 3 and 1, 1 after 0, 2 after 0; n1 = 2, n2 = 1: discount 2 / (2 + 2) = 1/2, 4 in all, 3 kinds
    lowest = 0.5 / 4 + 0.5 * 3 / 4 / 4
    expected = (2 - 1 / 3) / 3 + (1 / 3) * 2 / 3 * lowest
    assert fitted.bigram_bits(np.asarray([0]), np.asarray([1]))[0] == pytest.approx(-math.log2(expected))
    # tokens: 0 three times, 1 twice, 2 once: n1 = n2 = 1: discount 1/3, six in all, three kinds
    assert fitted.unigram_bits(np.asarray([2]))[0] == pytest.approx(-math.log2((1 - 1 / 3) / 6 + (1 / 3) * 3 / 6 / 4))


def test_the_chunks_make_no_difference():
    tokens = np.random.default_rng(0).integers(0, 50, size=1000)
    starts = np.arange(0, 1000, 10)
    whole = ngrams.fit([(tokens, starts)], 50, END)
    parts = ngrams.fit([(tokens[low : low + 100], np.arange(0, 100, 10)) for low in range(0, 1000, 100)], 50, END)
    np.testing.assert_array_equal(whole.pairs, parts.pairs)
    np.testing.assert_array_equal(whole.counts, parts.counts)


def test_counts_are_kept_by_what_they_were_made_from(tmp_path: Path):
    made = []

    def text(tokens: list[int]):
        made.append(tokens)
        yield np.asarray(tokens), np.asarray([0])

    first = ngrams.kept(tmp_path, {"data": "a"}, text([1, 2]), 5, 3)
    again = ngrams.kept(tmp_path, {"data": "a"}, text([1, 2]), 5, 3)
    assert made == [[1, 2]]
    np.testing.assert_array_equal(first.pairs, again.pairs)
    ngrams.kept(tmp_path, {"data": "b"}, text([2, 2]), 5, 3)
    assert made == [[1, 2], [2, 2]]
    for file in tmp_path.glob("ngrams-*"):
        file.write_bytes(b"broken")
    ngrams.kept(tmp_path, {"data": "a"}, text([1, 2]), 5, 3)
    assert len(made) == 3


def test_no_text_is_refused():
    with pytest.raises(DataError, match="hold no token"):
        ngrams.fit(iter([]), 5, 3)
