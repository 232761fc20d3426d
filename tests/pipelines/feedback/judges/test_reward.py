"""A reward as a judge gives Bradley and Terry's probabilities."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.feedback.judges.reward import RewardJudge, RewardJudgeBlock, sigmoid


def judge(temperature: float = 1.0) -> RewardJudge:
    return RewardJudge(lambda prompts, completions: [float(each) for each in completions], temperature)


def test_probabilities_by_hand() -> None:
    found = judge().compare(["p", "p", "p"], ["2", "0", "1"], ["0", "3", "1"])
    assert [each.probability for each in found] == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(3)), 0.5])
    assert [each.decided for each in found] == [True, True, False]
    assert found[0].consistent
    assert judge(4.0).compare(["p"], ["2"], ["0"])[0].probability == pytest.approx(1 / (1 + math.exp(-0.5)))
    assert judge().scores(["p"], ["2.5"]) == [2.5]


@given(st.floats(-800, 800))
def test_no_score_is_too_large(value: float) -> None:
    assert 0 <= sigmoid(value) <= 1
    assert sigmoid(value) + sigmoid(-value) == pytest.approx(1)


def test_it_opens_the_reward_it_holds() -> None:
    block = RewardJudgeBlock.model_validate({"name": "reward", "reward": {"name": "keyword", "words": ("good",)}})
    (verdict,) = block.open(None).compare(["p"], ["good"], ["bad"])  # type: ignore[arg-type]
    assert verdict.probability == pytest.approx(sigmoid(1.0))
    assert block.plain() == {"reward": {"name": "keyword", "words": ["good"]}}
