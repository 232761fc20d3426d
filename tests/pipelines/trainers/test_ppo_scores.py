"""From rewards to scores: running moments against all numbers at once, the order of clipping and penalties, what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import StageError
from pipelines.trainers.ppo_losses import RunningMoments, checked, shaped
from pipelines.trainers.ppo_settings import PPOArguments


def settings_with(**given: object) -> PPOArguments:
    return PPOArguments(**given)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.floats(-5, 5, allow_nan=False), max_size=5), min_size=1, max_size=5))
def test_running_moments_are_those_of_all_scores(batches: list[list[float]]):
    known = RunningMoments()
    for batch in batches:
        known.add(batch)
    every = [score for batch in batches for score in batch]
    assert known.count == len(every)
    if every:
        assert known.mean == pytest.approx(float(np.mean(every)), abs=1e-9)
        assert known.squares == pytest.approx(float(np.var(every)) * len(every), abs=1e-7)
    other = RunningMoments()
    other.restore(json.loads(json.dumps(known.state())))
    assert other.state() == known.state()


def test_scores_that_are_all_the_same_are_not_blown_up():
    known = RunningMoments()
    known.add([2.0, 2.0])
    assert known.deviation == 1.0


def test_scores_are_normalised_then_clipped_then_penalised():
    known = RunningMoments()
    known.add([0.0, 4.0])  # mean 2, deviation 2
    found = shaped(
        torch.tensor([10.0, 3.0]),
        torch.tensor([True, False]),
        torch.tensor([5, 8]),
        settings_with(reward_normalization="running", reward_clip=1.5, length_penalty=0.1, missing_eos_penalty=1.0),
        known,
    )
    torch.testing.assert_close(found, torch.tensor([1.5 - 0.5, 0.5 - 0.8 - 1.0]))


def test_scores_are_left_alone_unless_asked():
    scores = torch.tensor([10.0, -3.0])
    assert shaped(
        scores, torch.tensor([True, False]), torch.tensor([5, 8]), settings_with(), RunningMoments()
    ).tolist() == [10, -3]


@pytest.mark.parametrize(
    ("scores", "said"),
    [([1.0], "1 scores for 2 completions"), ([1.0, float("nan")], "gave nan"), ([1.0, float("inf")], "gave inf")],
)
def test_what_is_no_number_a_completion_is_refused(scores: list[float], said: str):
    with pytest.raises(StageError, match=said):
        checked(scores, 2)
