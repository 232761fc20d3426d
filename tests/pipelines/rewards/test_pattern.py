"""Matches of a regular expression, and patterns that would never end."""

from __future__ import annotations

import re

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.core.errors import StageError
from pipelines.rewards.rules import READ, Pattern, measured


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
