"""The hash against published numbers, and its numbers against what chance allows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipelines.data.randomness import GOLDEN, mix, uniforms

ALARM = 1e-6
"""A fair generator fails one test in a million; the seeds are fixed, so a pass stays a pass."""


def test_mix_is_the_finalizer_of_splitmix64():
    """The sequence that java.util.SplittableRandom's algorithm gives for the seed 1234567, as published on Rosetta
    Code."""
    states = np.asarray([(1234567 + step * GOLDEN) % 2**64 for step in range(1, 6)], dtype=np.uint64)
    assert mix(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def slowly(seed: int, stream: int, draw: int, position: int) -> float:
    """The same in Python's whole numbers."""

    def scramble(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    state = scramble(seed % 2**64)
    for value in (stream, draw, position):
        state = scramble((state + (value + 1) * 0x9E3779B97F4A7C15) % 2**64)
    return (state >> 11) / 2**53


@given(st.integers(0, 2**63), st.integers(0, 9), st.integers(0, 2**62), st.integers(0, 50))
def test_arrays_equal_python_numbers(seed: int, stream: int, draw: int, position: int):
    assert uniforms(seed, stream, [draw], position + 1)[0, position] == slowly(seed, stream, draw, position)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 2**40), min_size=1, max_size=5), st.integers(1, 20))
def test_a_number_does_not_depend_on_its_neighbours(seed: int, draws: list[int], length: int):
    together = uniforms(seed, 0, draws, length)
    assert together.shape == (len(draws), length)
    assert ((together >= 0) & (together < 1)).all()
    for row, draw in enumerate(draws):
        assert np.array_equal(together[row], uniforms(seed, 0, [draw], length + 3)[0, :length])


@pytest.mark.parametrize("seed", [0, 1, 42, 2**32 - 1])
def test_numbers_are_uniform(seed: int):
    numbers = uniforms(seed, 0, np.arange(2000), 128)
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > ALARM
    for column in (0, 1, 127):
        assert stats.kstest(numbers[:, column], "uniform").pvalue > ALARM
    for row in (0, 1, 1999):
        assert stats.kstest(numbers[row], "uniform").pvalue > ALARM


def neighbours(numbers: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        "positions": (numbers[:, :-1].ravel(), numbers[:, 1:].ravel()),
        "draws": (numbers[:-1].ravel(), numbers[1:].ravel()),
        "diagonal": (numbers[:-1, 1:].ravel(), numbers[1:, :-1].ravel()),
        "epochs": (numbers[:1000].ravel(), numbers[1000:].ravel()),
    }


def independent(first: np.ndarray, second: np.ndarray) -> float:
    """p-value of a chi-squared test that pairs fill an 8 by 8 grid evenly."""
    grid, _, _ = np.histogram2d(first, second, bins=8, range=[[0, 1], [0, 1]])
    return float(stats.chisquare(grid.ravel()).pvalue)


@pytest.mark.parametrize("pairs", ["positions", "draws", "diagonal", "epochs"])
def test_neighbouring_numbers_are_independent(pairs: str):
    assert independent(*neighbours(uniforms(42, 0, np.arange(2000), 64))[pairs]) > ALARM


@pytest.mark.parametrize(
    ("one", "other"), [((42, 0), (42, 1)), ((42, 0), (43, 0)), ((42, 0), (43, 1)), ((0, 1), (1, 0))]
)
def test_streams_and_seeds_are_independent(one: tuple[int, int], other: tuple[int, int]):
    first, second = (uniforms(*each, np.arange(1000), 64) for each in (one, other))
    assert independent(first.ravel(), second.ravel()) > ALARM
    assert np.intersect1d(first, second).size == 0


def test_the_test_of_independence_notices_dependence():
    numbers = uniforms(42, 0, np.arange(200), 64).ravel()
    assert independent(numbers, (numbers + 0.01) % 1) < ALARM


def test_no_number_comes_twice():
    numbers = uniforms(7, 0, np.arange(20_000), 50)
    assert len(np.unique(numbers)) == numbers.size
