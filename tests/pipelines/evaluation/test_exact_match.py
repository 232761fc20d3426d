import pytest

from pipelines.metrics.exact_match import compute, signature


def test_the_share_of_texts_that_are_their_references():
    assert compute(["72", "7", " 5 ", "a"], ["72", "72", "5", "A"])["exact_match"] == 50.0


def test_an_empty_text_matches_nothing():
    assert compute(["", " ", "x"], ["", "", "x"])["exact_match"] == pytest.approx(100 / 3)


def test_it_says_how_it_was_computed():
    assert signature().startswith("exact_match|")
