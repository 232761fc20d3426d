"""SQuAD 1.1 is scored as its official script scores it, on thousands of random predictions."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.metrics import squad

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


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(TEXTS, st.lists(TEXTS, min_size=1, max_size=3)), min_size=1, max_size=12))
def test_it_equals_a_rewrite_of_the_official_script(questions):
    exact = [
        max(float(official_normal(said) == official_normal(answer)) for answer in answers)
        for said, answers in questions
    ]
    overlap = [max(official_f1(said, answer) for answer in answers) for said, answers in questions]
    found = squad.compute([said for said, _ in questions], [answers for _, answers in questions])
    assert found == pytest.approx(
        {"exact_match": 100 * sum(exact) / len(exact), "f1": 100 * sum(overlap) / len(overlap)}, abs=1e-9
    )


def test_a_case_by_hand():
    # "The Norman dukes" -> "norman dukes"; shares one of two words with "norman conquest": F1 = 2 · ½ · ½ / 1 = ½
    found = squad.compute(["The Norman dukes", "in 1066!"], [["a Norman conquest", "Danes"], ["In 1066."]])
    assert found == {"exact_match": 50.0, "f1": 75.0}


def test_an_article_is_looked_for_behind_the_punctuation():
    assert squad.normalised("the-end of A. Theory") == "theend of theory"


def test_a_question_without_a_right_answer_belongs_to_the_other_metric():
    with pytest.raises(ValueError, match="squad_v2"):
        squad.compute(["x"], [[]])


def test_answers_that_are_no_lists_of_texts_are_refused():
    with pytest.raises(ValueError, match="references must be lists of texts"):
        squad.compute(["x"], ["x"])
