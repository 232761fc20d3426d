"""Draws of a mixture: the shares hold at every point, and each source gives its examples in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.data.mixtures import WINDOW, Mixture, ShuffledExamples
from pipelines.data.packing import Blocks
from pipelines.data.randomness import permuted
from pipelines.data.sentences import Spans, read_sentences
from tests import tiny


def source(size: int, seed: int = 1, number: int = 0) -> ShuffledExamples:
    blocks = np.arange(size * 2, dtype=np.int32).reshape(size, 2) + 1000 * number
    return ShuffledExamples(Blocks(blocks), 2, seed, number)


def test_shares_hold_and_every_source_goes_in_turn() -> None:
    mixture = Mixture([source(50), source(7, number=1), source(9, number=2)], [0.7, 0.25, 0.05], seed=5, length=100)
    places = [mixture.place(draw) for draw in range(5 * WINDOW + 300)]
    for number in range(3):
        assert [at for which, at in places if which == number] == list(range(sum(w == number for w, _ in places)))
    for window in range(5):
        inside = [which for which, _ in places[window * WINDOW : (window + 1) * WINDOW]]
        for number, weight in enumerate((0.7, 0.25, 0.05)):
            assert abs(inside.count(number) - weight * WINDOW) < 1 + 1e-9
        assert inside != sorted(inside)
    fresh = Mixture(mixture.sources, [7, 2.5, 0.5], seed=5, length=100)  # a common factor does not matter
    assert [fresh.place(draw) for draw in (5300, 17, 4096)] == [places[draw] for draw in (5300, 17, 4096)]
    for draws in (0, 1, 1023, 1024, 3000):
        counted = [each.examples for each in fresh.drawn(draws)]
        assert counted == [sum(which == number for which, _ in places[:draws]) for number in range(3)]
    drawn = fresh.drawn(3000)
    assert drawn[1].tokens == 2 * drawn[1].examples
    assert drawn[1].epochs == drawn[1].examples / 7


def test_the_first_windows_are_counted_in_the_blink_of_an_eye_however_many() -> None:
    mixture = Mixture([source(5), source(7, number=1)], [1, 2], seed=5, length=1)
    draws = 300_000 * WINDOW
    assert sum(each.examples for each in mixture.drawn(draws)) == draws
    assert mixture.drawn(draws)[0].examples == pytest.approx(draws / 3, rel=1e-4)


def test_a_pass_over_a_mapped_source_has_every_example_once() -> None:
    examples = source(23)
    passes = [[examples[number]["input_ids"].tolist() for number in range(at, at + 23)] for at in (0, 23, 46)]
    assert all(sorted(each) == sorted(passes[0]) for each in passes)
    assert passes[0] != passes[1] != passes[2]
    assert len({tuple(row) for row in passes[0]}) == 23


def test_tokens_of_spans_are_counted_exactly(tmp_path: Path) -> None:
    texts = [". ".join(word.capitalize() for word in (*text.split(" on "), text)) for text in tiny.TEXTS]
    spans = Spans(read_sentences(tiny.tokenizer(), texts, tmp_path, "k"), 14)
    examples: Any = ShuffledExamples(spans, 14, 1)
    lengths = [len(examples[number]["input_ids"]) for number in range(2 * len(spans))]
    for count in (0, 3, len(spans), len(spans) + 5):
        assert examples.tokens(count) == sum(lengths[:count])


@pytest.mark.parametrize("size", [1, 2, 3, 17, 64, 1000, 4097])
def test_a_permutation_that_is_never_held_is_one(size: int) -> None:
    whole = permuted(np.arange(size), size, 3, 4)
    assert sorted(whole.tolist()) == list(range(size))
    assert permuted([size // 2], size, 3, 4)[0] == whole[size // 2]
    if size > 16:
        assert whole.tolist() != list(range(size))
        assert whole.tolist() != permuted(np.arange(size), size, 3, 5).tolist()
    if size > 900:  # neighbours do not stay neighbours
        assert abs(np.corrcoef(np.arange(size), whole)[0, 1]) < 0.1
