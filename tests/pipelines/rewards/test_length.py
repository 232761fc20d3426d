"""Lengths in words and characters, and how near they are to a target."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.rewards.rules import Length, length_of, nearness


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
