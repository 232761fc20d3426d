"""Sums of rewards."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.rewards.rules import Keyword, Length
from pipelines.rewards.weighted import Weighted

KEYWORD = {"name": "keyword", "words": ("good",)}


@settings(deadline=None)
@given(st.lists(st.text(alphabet="god ", max_size=20), min_size=1, max_size=5), st.floats(-3, 3), st.floats(-3, 3))
def test_a_sum_is_the_sum_of_its_parts(completions: list[str], one: float, other: float) -> None:
    block = Weighted.model_validate(
        {"rewards": ({"reward": KEYWORD, "weight": one}, {"reward": "length", "weight": other})}
    )
    prompts = [""] * len(completions)
    apart = zip(
        Keyword(words=("good",)).open(None)(prompts, completions),
        Length().open(None)(prompts, completions),
        strict=True,
    )
    assert block.open(None)(prompts, completions) == pytest.approx([one * a + other * b for a, b in apart])


def test_mistakes_content_and_stages_come_from_the_parts() -> None:
    block = Weighted.model_validate(
        {"rewards": ({"reward": {"from": "a"}}, {"reward": KEYWORD}, {"reward": {"from": "a", "normalize": True}})}
    )
    assert block.stages == ("a",)
    assert block.content() == {}
    assert block.rewards[1].weight == 1.0
    with pytest.raises(ValidationError, match=r"rewards\[0\]\.reward\.words: is missing"):
        Weighted.model_validate({"rewards": ({"reward": "keyword"},)})
    with pytest.raises(ValidationError, match="at least 1"):
        Weighted.model_validate({"rewards": ()})
