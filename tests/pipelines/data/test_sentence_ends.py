"""Sentences end where a reader would end them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.sentences import sentence_ends


def sentences(text: str) -> list[str]:
    places = [0, *sentence_ends(text), len(text)]
    return [text[start:end].strip() for start, end in pairwise(places)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("'Stop!' he said. \"Why?\" (No answer.) Then", ["'Stop!' he said.", '"Why?"', "(No answer.)", "Then"]),
        ("wrapped\nover lines. Next", ["wrapped\nover lines.", "Next"]),
        ("A heading\n\nA text\n \n\nAnother", ["A heading", "A text", "", "Another"]),
        ("it costs 3.50 at www.example.com today. Yes", ["it costs 3.50 at www.example.com today.", "Yes"]),
        ("so... what? yes", ["so... what? yes"]),
        ("Mr. Smith", ["Mr.", "Smith"]),
        ("No end", ["No end"]),
        ("  One.  ", ["One."]),
        ("Er sagte: »Ja.« Dann ging er… Ende.", ["Er sagte: »Ja.«", "Dann ging er…", "Ende."]),
        ("", [""]),
    ],
)
def test_known_texts(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(st.text(alphabet="aB .!?\n'\")", max_size=60))
def test_ends_ascend_within_the_text(text: str) -> None:
    ends = sentence_ends(text)
    assert ends == sorted(set(ends))
    assert all(text[:end].strip() and text[end:].strip() for end in ends)
    assert all(text[end].isspace() for end in ends)
