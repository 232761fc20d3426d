"""Which completions are compared, and what becomes of the verdicts."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.feedback import pairs
from pipelines.feedback.judges.judge import Verdict

TEXTS = ["one", "two", "three", "four"]


def test_all_pairs_are_compared_once_each_in_some_order() -> None:
    found = pairs.compared(TEXTS, "all", 0, 0)
    assert sorted(tuple(sorted(pair)) for pair in found) == list(combinations(range(4), 2))
    assert pairs.compared(TEXTS, "best_worst", 0, 0) == found


def test_random_pairs_use_each_completion_once() -> None:
    found = pairs.compared([*TEXTS, "five"], "random", 3, 7)
    assert len(found) == 2
    assert len({at for pair in found for at in pair}) == 4


def test_empty_and_repeated_completions_are_not_compared() -> None:
    assert pairs.compared(["one", " ", "one", ""], "all", 0, 0) == []
    assert [tuple(sorted(pair)) for pair in pairs.compared(["one", "", "two", "one"], "all", 0, 0)] == [(0, 2)]


def test_the_order_is_a_function_of_seed_and_number_and_gives_no_place_its_way() -> None:
    assert pairs.compared(TEXTS, "all", 1, 5) == pairs.compared(TEXTS, "all", 1, 5)
    turned = sum(first > second for number in range(400) for first, second in pairs.compared(TEXTS, "all", 1, number))
    assert 1100 < turned < 1300  # of 2,400


def verdicts_of(scores: list[float]) -> dict[pairs.Pair, Verdict]:
    return {
        (a, b): Verdict(0.9 if scores[a] > scores[b] else 0.1 if scores[a] < scores[b] else 0.5)
        for a, b in combinations(range(len(scores)), 2)
    }


def test_best_against_worst() -> None:
    verdicts = verdicts_of([2.0, 5.0, 1.0, 3.0])
    rates = pairs.win_rates(4, verdicts)
    assert rates == pytest.approx([(0.1 + 0.9 + 0.1) / 3, 0.9, 0.1, (0.9 + 0.1 + 0.9) / 3])
    assert pairs.preferences(rates, verdicts, "best_worst") == [pairs.PreferencePair(1, 2, 0.9)]


def test_a_worst_text_that_was_written_twice_is_compared_once() -> None:
    verdicts = {(0, 1): Verdict(0.9)}
    assert pairs.preferences([1.0, 0.0, 0.0], verdicts, "best_worst") == [pairs.PreferencePair(0, 1, 0.9)]


def test_all_decided_pairs_are_preferences() -> None:
    verdicts = verdicts_of([2.0, 5.0, 2.0])
    found = pairs.preferences(pairs.win_rates(3, verdicts), verdicts, "all")
    assert [(each.chosen, each.rejected) for each in found] == [(1, 0), (1, 2)]
    assert all(each.probability == pytest.approx(0.9) for each in found)


def test_a_turned_pair_keeps_its_meaning() -> None:
    verdicts = {(1, 0): Verdict(0.8)}
    assert pairs.preferences(pairs.win_rates(2, verdicts), verdicts, "best_worst") == [pairs.PreferencePair(1, 0, 0.8)]
    verdicts = {(1, 0): Verdict(0.2)}
    assert pairs.preferences(pairs.win_rates(2, verdicts), verdicts, "all") == [pairs.PreferencePair(0, 1, 0.8)]


def test_abstentions_and_ties_prefer_nothing() -> None:
    verdicts = {(0, 1): Verdict(0.5, abstained=True), (0, 2): Verdict(0.5)}
    assert pairs.win_rates(4, verdicts) == [0.5, None, 0.5, None]
    assert pairs.preferences([0.5, None, 0.5, None], verdicts, "all") == []
    assert pairs.preferences([0.5, None, 0.5, None], verdicts, "best_worst") == []


def test_a_circle_is_found() -> None:
    circle = {(0, 1): Verdict(0.9), (1, 2): Verdict(0.9), (0, 2): Verdict(0.1)}
    assert pairs.cycles(3, circle) == (1, 1)
    assert pairs.cycles(3, verdicts_of([1.0, 2.0, 3.0])) == (0, 1)
    assert pairs.cycles(3, verdicts_of([1.0, 1.0, 3.0])) == (0, 0)  # a tie decides nothing
    assert pairs.cycles(4, circle) == (1, 1)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6))
def test_a_judge_with_scores_is_never_circular_and_best_beats_worst(scores: list[float]) -> None:
    verdicts = verdicts_of(scores)
    assert pairs.cycles(len(scores), verdicts)[0] == 0
    rates = pairs.win_rates(len(scores), verdicts)
    for each in pairs.preferences(rates, verdicts, "best_worst"):
        assert scores[each.chosen] == max(scores)
        assert scores[each.rejected] == min(scores)
    for each in pairs.preferences(rates, verdicts, "all"):
        assert scores[each.chosen] > scores[each.rejected]
