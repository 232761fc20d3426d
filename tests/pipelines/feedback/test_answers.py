"""A letter or a number is read where it is said, and nowhere else."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.feedback.judges import questions


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A", "A"),
        (" B.", "B"),
        ("(A)", "A"),
        ("**B**", "B"),
        ("Answer: A", "A"),
        ("**Answer:** (B)", "B"),
        ("The answer is B", "B"),
        ("Completion A says more.\nAnswer: B", "B"),
        ("Answer: A\nNo, wait.\nAnswer: B", "B"),
        ("Completion A is better.", "A"),
        ("option B", "B"),
        ("They differ.\n\nB", "B"),
        ("", None),
        ("I cannot say.", None),
        ("Completion A and completion B are alike.", None),
        ("A\nB", None),
        ("A good answer would be longer", None),
        ("both", None),
        ("C", None),
        ("ABBA", None),
        ("Answer: neither", None),
    ],
)
def test_letters(text: str, found: str | None) -> None:
    assert questions.letter(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("7", 7),
        (" 10.", 10),
        ("8/10", 8),
        ("Answer: 3", 3),
        ("Score: 10", 10),
        ("It is fine.\nAnswer: 6", 6),
        ("The 2 of them are good.\nAnswer: 9", 9),
        ("0", None),
        ("11", None),
        ("I like it", None),
        ("2 or 3", None),
        ("Answer: 7.5", None),
        ("", None),
    ],
)
def test_numbers(text: str, found: int | None) -> None:
    assert questions.number(text) == found


@given(st.text(max_size=50))
def test_no_text_is_an_error(text: str) -> None:
    assert questions.letter(text) in (None, "A", "B")
    assert questions.number(text) in (None, *range(1, 11))


def place(token: str, **top: float) -> dict[str, object]:
    return {
        "token": token,
        "logprob": math.log(top.get(token.strip(), 1.0)),
        "top_logprobs": [{"token": each, "logprob": math.log(share)} for each, share in top.items()],
    }


def test_the_probability_is_shared_between_the_two_letters() -> None:
    assert questions.probability_of_a([place("A", A=0.6, B=0.2, C=0.1)], "A") == pytest.approx(0.75)
    spaced = {
        "token": " B",
        "logprob": math.log(0.5),
        "top_logprobs": [
            {"token": " B", "logprob": math.log(0.5)},
            {"token": "A", "logprob": math.log(0.1)},
            {"token": " A", "logprob": math.log(0.15)},
        ],
    }
    assert questions.probability_of_a([spaced], "B") == pytest.approx(1 / 3)


def test_the_last_place_with_the_letter_that_was_read_counts() -> None:
    places = [
        place("A", A=0.9, B=0.1),
        place("Answer", Answer=1.0),
        place(":", **{":": 1.0}),
        place("B", A=0.25, B=0.75),
    ]
    assert questions.probability_of_a(places, "A is longer.\nAnswer: B") == pytest.approx(0.25)


def test_without_a_letter_there_is_no_probability() -> None:
    assert questions.probability_of_a([place("maybe", maybe=1.0)], "maybe") is None
    assert questions.probability_of_a([], "A") is None
    assert questions.probability_of_a([{"token": "A"}], "A") is None  # a server that leaves the numbers out


def test_the_expected_score_is_the_mean_under_the_probabilities() -> None:
    assert questions.expected_score([place("8", **{"8": 0.5, "6": 0.25, "x": 0.25})], "8") == pytest.approx(
        (8 * 0.5 + 6 * 0.25) / 0.75
    )
    assert questions.expected_score([place("10", **{"10": 1.0})], "10") == pytest.approx(10)
    assert questions.expected_score([place("x", x=1.0)], "x") is None


def test_scores_are_centred() -> None:
    assert [questions.scaled(score) for score in (1, 5.5, 10)] == [-1.0, 0.0, 1.0]
