"""The share of words that are in a list, against counting them one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.rewards.rules import Keyword, keyword_share, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Good, GOOD film-maker!", ["good", "good", "film", "maker"]),
        ("don't Don’t 'tis", ["don't", "don't", "tis"]),
        ("", []),
        (" .,- _", []),
        ("3 films in 2026", ["3", "films", "in", "2026"]),
        ("Straße straSSE", ["strasse", "strasse"]),
        ("très bon", ["très", "bon"]),
    ],
)
def test_words_are_runs_of_letters_and_digits_with_apostrophes(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_the_share_of_words_by_hand() -> None:
    reward = Keyword(words=("good", "Great"))
    scores = reward.open(None)(
        ["good good"] * 4, ["a good film, a great film", "GREAT", "", "goodness"]
    )  # the prompt does not count
    assert scores == [2 / 6, 1.0, 0.0, 0.0]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["good", "Great", "bad", "film", "..."]), max_size=30),
    st.sets(st.sampled_from(["good", "great", "bad"])),
)
def test_the_share_against_counting(parts: list[str], wanted: set[str]) -> None:
    known = [part.lower() for part in parts if part != "..."]
    expected = len([word for word in known if word in wanted]) / len(known) if known else 0.0
    assert keyword_share(" ".join(parts), frozenset(wanted)) == expected


def test_words_with_apostrophes_are_found_however_they_are_written() -> None:
    assert Keyword(words=("don’t",)).open(None)([""], ["I DON'T"]) == [0.5]


@pytest.mark.parametrize(
    ("words", "message"),
    [((), "at least 1"), (("very good",), "'very good' is not one word"), (("",), "is not one word")],
)
def test_what_is_no_word_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Keyword(words=words)
