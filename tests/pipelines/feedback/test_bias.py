"""The measures of a judge find what was built into it, and agree with slow or library ways to compute them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipelines.feedback import results
from pipelines.feedback.judges.judge import Verdict, both_orders, one_order


@given(st.integers(1, 400), st.data())
def test_wilson_is_scipys(count: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, count))
    expected = stats.binomtest(hits, count).proportion_ci(0.95, method="wilson")
    assert results.wilson(hits, count) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_of_nothing_nothing_is_known() -> None:
    assert results.wilson(0, 0) == (0.0, 1.0)
    assert results.share(0, 0)["value"] is None
    assert results.order_consistency([Verdict(0.7)])["count"] == 0


def test_order_and_place() -> None:
    fair = both_orders(0.8, 0.9)
    first_always = both_orders(0.9, 0.1)  # shown first it wins, shown second the other does
    second_always = both_orders(0.2, 0.8)
    assert (fair.consistent, first_always.consistent, second_always.consistent) == (True, False, False)
    assert results.order_consistency([fair, first_always])["value"] == 0.5
    assert results.position_bias([fair])["value"] == 0.5
    assert results.position_bias([first_always])["value"] == 1.0
    assert results.position_bias([second_always])["value"] == 0.0
    assert results.position_bias([fair, first_always, second_always])["count"] == 3


def test_the_mean_of_both_orders() -> None:
    assert both_orders(0.9, 0.5).probability == pytest.approx(0.7)
    for silent in (both_orders(None, None), both_orders(None, 0.4), both_orders(0.4, None)):
        assert silent.abstained  # one order alone is quality and place in one
        assert silent.probability == 0.5
        assert not silent.decided
        assert silent.consistent is None
    assert one_order(0.4) == Verdict(0.4, 0.4)
    assert one_order(None).abstained
    assert not both_orders(0.9, 0.1).decided  # a tie


def test_length() -> None:
    short, long = "word", "a much longer text"
    likes_long = [Verdict(0.9), Verdict(0.2)]
    found = results.length_bias(likes_long, [long, short], [short, long])
    assert (found["value"], found["count"]) == (1.0, 2)
    same = results.length_bias([Verdict(0.9)], ["abc"], ["xyz"])
    assert same["count"] == 0
    assert same["correlation"] is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=30))
def test_spearman_is_scipys(rows: list[tuple[int, int]]) -> None:
    one, two = [float(a) for a, _ in rows], [float(b) for _, b in rows]
    found = results.spearman(one, two)
    if len(set(one)) < 2 or len(set(two)) < 2:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(one, two).statistic, abs=1e-9)


def test_agreement_counts_decided_verdicts() -> None:
    found = results.agreement(
        [Verdict(0.9), Verdict(0.4), Verdict(0.5), Verdict(0.5, abstained=True)], [True, True, True, False]
    )
    assert (found["value"], found["count"]) == (0.5, 2)


def test_saying_the_same_again() -> None:
    once, again = (
        [Verdict(0.9), Verdict(0.2), Verdict(0.5, abstained=True)],
        [Verdict(0.6), Verdict(0.8), Verdict(0.5, abstained=True)],
    )
    assert results.self_consistency(once, again)["value"] == pytest.approx(2 / 3)


def test_a_known_liking_for_the_first_place_is_found_again() -> None:
    random = Random(0)
    verdicts = []
    for _ in range(2000):
        truth = random.random() < 0.5
        shown = [True if random.random() < 0.3 else truth for _ in "ab"]
        verdicts.append(both_orders(float(shown[0]), 1 - float(True if random.random() < 0.3 else not truth)))
    found = results.position_bias(verdicts)
    assert found["value"] == pytest.approx(0.65, abs=0.02)  # one half, and 0.3 of the other half


def test_the_interval_of_a_place_covers_as_often_as_it_says() -> None:
    """Both showings of a pair depend on each other: with a clear better one and no bias they always cancel out."""
    random, covered = Random(0), 0
    for _ in range(600):
        verdicts = []
        for _ in range(60):
            clear = random.random() < 0.7
            first, second = (1.0, 1.0) if clear else (float(random.random() < 0.65), float(random.random() >= 0.65))
            verdicts.append(both_orders(first, second))
        found = results.position_bias(verdicts)
        covered += found["low"] <= 0.5 + 0.3 * 0.15 <= found["high"]
    assert 0.93 <= covered / 600 <= 0.98
