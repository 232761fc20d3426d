"""Words of a list against counting them one by one; lengths; matches of patterns, and patterns that would never end."""

from __future__ import annotations

import re

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.core.errors import StageError
from pipelines.rewards.rules import (
    READ,
    Keyword,
    Length,
    Pattern,
    keyword_share,
    length_of,
    measured,
    nearness,
    words_of,
)


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


def test_lengths_by_hand() -> None:
    assert [length_of(" a good film. ", unit) for unit in ("words", "characters")] == [3, 12]
    assert Length().open(None)(["x", "x"], ["a b c", ""]) == [3.0, 0.0]
    assert Length(unit="characters", target=4).open(None)([""] * 4, ["abcd", "ab", "abcdef", "a" * 99]) == [
        1.0,
        0.5,
        0.5,
        0.0,
    ]


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 200))
def test_nearness_falls_by_equal_steps_from_its_target(length: int, target: int) -> None:
    found = nearness(length, target)
    assert 0.0 <= found <= 1.0
    assert (found == 1.0) == (length == target)
    if 0 < length < 2 * target:
        assert found == pytest.approx(1 - abs(length - target) / target)


def test_three_measures_by_hand() -> None:
    text = "ab 12 cd 345"
    scores = {
        measure: Pattern(pattern=r"\d+", measure=measure).open(None)([""], [text])[0]
        for measure in ("any", "count", "share")
    }
    assert scores == {"any": 1.0, "count": 2.0, "share": 5 / 12}
    assert [Pattern(pattern="GOOD", ignore_case=each).open(None)([""], ["so good"]) for each in (False, True)] == [
        [0.0],
        [1.0],
    ]
    assert Pattern(pattern="x", measure="share").open(None)(["x"], [""]) == [0.0]


@settings(deadline=None)
@given(st.text(alphabet="ab1 \n", max_size=60), st.sampled_from([r"\d", "a+b?", "^a", r"\bab"]))
def test_counts_are_those_of_pythons_own_expressions(text: str, pattern: str) -> None:
    found = [match.span() for match in re.finditer(pattern, text)]
    expression = regex.compile(pattern)
    assert measured(expression, text, "count") == len(found)
    assert measured(expression, text, "any") == bool(found)
    assert measured(expression, text, "share") == (
        sum(end - begin for begin, end in found) / len(text) if text else 0.0
    )


def test_a_pattern_that_would_never_end_is_refused_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeoutError):
        measured(regex.compile(r"(a|aa)+$"), "a" * 40 + "!", "any", seconds=0.05)
    monkeypatch.setattr("pipelines.rewards.rules.measured", lambda *given: (_ for _ in ()).throw(TimeoutError))
    with pytest.raises(StageError, match="without repeats inside repeats"):
        Pattern(pattern="a").open(None)([""], ["a"])


def test_only_the_beginning_of_an_endless_text_is_read() -> None:
    assert Pattern(pattern="b").open(None)([""], ["a" * READ + "b"]) == [0.0]


@pytest.mark.parametrize("pattern", ["(", "[a", "", "a" * 501])
def test_what_is_no_expression_is_refused_in_the_recipe(pattern: str) -> None:
    with pytest.raises(ValidationError):
        Pattern(pattern=pattern)
