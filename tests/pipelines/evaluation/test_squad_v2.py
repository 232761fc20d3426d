"""SQuAD 2.0 is scored as its official script scores it, thresholds included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.metrics import squad_v2
from tests.pipelines.evaluation.test_squad import TEXTS, official_f1, official_normal

QUESTIONS = st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=3)), min_size=1, max_size=12)


def official_scores(said: str, answers: list[str]) -> tuple[float, float]:
    """`get_raw_scores` for one question."""
    gold = [answer for answer in answers if official_normal(answer)] or [""]
    exact = max(int(official_normal(answer) == official_normal(said)) for answer in gold)

    def f1(answer: str) -> float:
        true, predicted = official_normal(answer).split(), official_normal(said).split()
        return float(true == predicted) if not true or not predicted else official_f1(said, answer)

    return float(exact), max(f1(answer) for answer in gold)


def official_best(
    texts: list[str], scores: list[float], na_probs: list[float], has_answer: list[bool]
) -> tuple[float, float]:
    """`find_best_thresh`: questions are answered one by one, the surest first."""
    current = best = float(sum(not each for each in has_answer))
    threshold = 0.0
    for at in sorted(range(len(texts)), key=lambda at: na_probs[at]):
        current += scores[at] if has_answer[at] else -1 if texts[at] else 0
        if current > best:
            best, threshold = current, na_probs[at]
    return 100.0 * best / len(scores), threshold


@settings(max_examples=300, deadline=None)
@given(QUESTIONS)
def test_it_equals_a_rewrite_of_the_official_script(questions):
    each = [official_scores(said, answers) for said, answers in questions]
    found = squad_v2.compute([said for said, _ in questions], [answers for _, answers in questions])
    assert found["exact_match"] == pytest.approx(100 * np.mean([exact for exact, _ in each]), abs=1e-9)
    assert found["f1"] == pytest.approx(100 * np.mean([f1 for _, f1 in each]), abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(QUESTIONS, st.data())
def test_the_best_thresholds_are_those_of_the_official_script(questions, data):
    differences = data.draw(
        st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 3.0]), min_size=len(questions), max_size=len(questions))
    )
    texts, answers = [said for said, _ in questions], [answers for _, answers in questions]
    found = squad_v2.best_threshold(texts, differences, answers)
    for column, name in enumerate(("exact", "f1")):
        scores = [official_scores(said, right)[column] for said, right in questions]
        best, threshold = official_best(texts, scores, differences, [bool(right) for right in answers])
        assert found[f"best_{name}"] == pytest.approx(best, abs=1e-9)
        assert found[f"best_{name}_thresh"] == threshold


def test_not_to_answer_is_right_where_there_is_no_answer_and_wrong_where_there_is():
    assert squad_v2.compute(["", "x", ""], [[], [], ["x"]]) == {
        "exact_match": pytest.approx(100 / 3),
        "f1": pytest.approx(100 / 3),
    }


def test_questions_with_and_without_an_answer_are_counted_apart():
    found = squad_v2.by_answerability(["", "x", "y z"], [[], [], ["y"]])
    assert found == {
        "HasAns_exact": 0.0,
        "HasAns_f1": pytest.approx(200 / 3),
        "HasAns_total": 1,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
    }


def test_a_threshold_empties_the_answers_that_are_less_sure_than_no_answer():
    assert squad_v2.at_threshold(np.array(["x", "y", "z"], dtype=object), [1.0, 0.5, -1.0], 0.5).tolist() == [
        "",
        "y",
        "z",
    ]
