"""SQuAD 1.1 and 2.0 are scored as their official scripts score them, thresholds included."""

from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.metrics.squad import Squad, SquadV2, at_threshold, best_threshold, by_answerability, normalised
from tests.covering import examples

WORDS = [
    "the",
    "a",
    "an",
    "The",
    "cat",
    "cats",
    "cat's",
    "U.S.",
    "re-run",
    "über",
    "ÜBER",
    "1,000",
    "1000",
    "theory",
    "a.b",
    "«x»",
    "’",
    "-",
    "the-end",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join) | st.text(max_size=12)


def official_normal(text: str) -> str:
    """`normalize_answer` step by step: every character and every word is looked at by itself."""
    kept = "".join(character for character in text.lower() if character not in set(string.punctuation))
    out, word = [], ""
    for character in kept + " ":  # a word in the sense of \\b: letters, digits and underscores
        if character.isalnum() or character == "_" or is_word(character):
            word += character
            continue
        out.append(" " if word in ("a", "an", "the") else word)
        out.append(character)
        word = ""
    return " ".join("".join(out).split())


def is_word(character: str) -> bool:
    import re

    return re.match(r"\w", character) is not None


def official_f1(said: str, right: str) -> float:
    """Words in common, each taken once for each time it occurs in both, by crossing them out."""
    predicted, true = official_normal(said).split(), official_normal(right).split()
    left = list(true)
    same = 0
    for word in predicted:
        if word in left:
            left.remove(word)
            same += 1
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(true)
    return 2 * precision * recall / (precision + recall)


def test_a_case_by_hand():
    # "The Norman dukes" -> "norman dukes"; shares one of two words with "norman conquest": F1 = 2 · ½ · ½ / 1 = ½
    found = Squad().compute(["The Norman dukes", "in 1066!"], [["a Norman conquest", "Danes"], ["In 1066."]])
    assert found == {"exact_match": 50.0, "f1": 75.0}


def test_an_article_is_looked_for_behind_the_punctuation():
    assert normalised("the-end of A. Theory") == "theend of theory"


def test_a_question_without_a_right_answer_belongs_to_the_other_metric():
    with pytest.raises(ValueError, match="squad_v2"):
        Squad().compute(["x"], [[]])


def test_answers_that_are_no_lists_of_texts_are_refused():
    with pytest.raises(ValueError, match="references must be lists of texts"):
        Squad().compute(["x"], ["x"])


def test_not_to_answer_is_right_where_there_is_no_answer_and_wrong_where_there_is():
    assert SquadV2().compute(["", "x", ""], [[], [], ["x"]]) == {
        "exact_match": pytest.approx(100 / 3),
        "f1": pytest.approx(100 / 3),
    }


def test_questions_with_and_without_an_answer_are_counted_apart():
    found = by_answerability(["", "x", "y z"], [[], [], ["y"]])
    assert found == {
        "HasAns_exact": 0.0,
        "HasAns_f1": pytest.approx(200 / 3),
        "HasAns_total": 1,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
    }


def test_a_threshold_empties_the_answers_that_are_less_sure_than_no_answer():
    assert at_threshold(np.array(["x", "y", "z"], dtype=object), [1.0, 0.5, -1.0], 0.5).tolist() == [
        "",
        "y",
        "z",
    ]


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


@examples(40, 150)
@given(QUESTIONS, st.data())
def test_the_best_thresholds_are_those_of_the_official_script(questions, data):
    differences = data.draw(
        st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 3.0]), min_size=len(questions), max_size=len(questions))
    )
    texts, answers = [said for said, _ in questions], [answers for _, answers in questions]
    found = best_threshold(texts, differences, answers)
    for column, name in enumerate(("exact", "f1")):
        scores = [official_scores(said, right)[column] for said, right in questions]
        best, threshold = official_best(texts, scores, differences, [bool(right) for right in answers])
        assert found[f"best_{name}"] == pytest.approx(best, abs=1e-9)
        assert found[f"best_{name}_thresh"] == threshold
