"""Wins, divergences and variety, by hand and against slower ways to the same numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.evaluation.policy_completions import distinct, kl_estimates, means, paired_intervals, wins

NATS = st.lists(st.floats(-20, 0), min_size=1, max_size=12)


def test_wins_by_hand() -> None:
    assert wins(np.array([2.0, 1.0, 1.0]), np.array([1.0, 1.0, 2.0])).tolist() == [1.0, 0.5, 0.0]


@settings(deadline=None)
@given(st.lists(st.tuples(NATS, st.randoms()), min_size=1, max_size=5))
def test_divergences_against_loops(drawn: list[tuple[list[float], object]]) -> None:
    own = [np.array(each) for each, _ in drawn]
    other = [np.array([random.uniform(-20, 0) for _ in each]) for each, random in drawn]  # type: ignore[attr-defined]
    k1, k3 = kl_estimates(own, other)
    for at, (one, two) in enumerate(zip(own, other, strict=True)):
        assert k1[at] == pytest.approx(sum(float(p) - float(q) for p, q in zip(one, two, strict=True)), abs=1e-9)
        assert k3[at] == pytest.approx(
            sum(math.exp(q - p) - 1 - (q - p) for p, q in zip(one, two, strict=True)), rel=1e-9, abs=1e-9
        )
        assert k3[at] >= 0


def test_both_estimates_come_to_the_divergence_itself() -> None:
    """Two distributions over three tokens, written down: the mean over many samples of the first is sum p log(p / q) a token."""
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.5, 0.3])
    exact = 4 * float((p * np.log(p / q)).sum())
    drawn = np.random.default_rng(0).choice(3, p=p, size=(20_000, 4))
    k1, k3 = kl_estimates(list(np.log(p)[drawn]), list(np.log(q)[drawn]))
    assert k1.mean() == pytest.approx(exact, rel=0.02)
    assert k3.mean() == pytest.approx(exact, rel=0.02)
    assert k3.std() < k1.std()


def test_distinct_runs_by_hand() -> None:
    assert distinct(["a b a b", "A b"]) == 2 / 4  # a b, b a, a b; a b
    assert distinct(["a b c d"]) == 1.0
    assert distinct(["a", ""]) == 0.0
    assert distinct(["a a b"], size=1) == 2 / 3


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=30))
def test_intervals_hold_their_means_and_are_paired(rows: list[tuple[float, float]]) -> None:
    own, other = (np.array(column) for column in zip(*rows, strict=True))
    columns = {"reward": own, "reward_against": other, "win_rate": wins(own, other)}
    found, averages = paired_intervals(columns, seed=3), means(columns)
    assert found == paired_intervals(columns, seed=3)
    assert 0 <= found["win_rate"][0] <= found["win_rate"][1] <= 1
    assert set(found) == set(averages)
    alike = paired_intervals({"one": own, "two": own + 1}, seed=3)  # the same prompts are drawn for both columns
    assert np.subtract(alike["two"], alike["one"]) == pytest.approx([1.0, 1.0])
