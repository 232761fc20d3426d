"""Exact match: texts that are their references to the letter."""

from __future__ import annotations

import pytest

from pipelines.metrics.exact_match import ExactMatch


def test_an_empty_text_matches_nothing():
    assert ExactMatch().compute(["", " ", "x"], ["", "", "x"])["exact_match"] == pytest.approx(100 / 3)


def test_it_says_how_it_was_computed():
    assert ExactMatch().signature().startswith("exact_match|")


def test_the_share_of_texts_that_are_their_references():
    assert ExactMatch().compute(["72", "7", " 5 ", "a"], ["72", "72", "5", "A"])["exact_match"] == 50.0
