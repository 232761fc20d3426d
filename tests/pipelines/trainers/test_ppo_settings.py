"""The settings: every one has a place, a default that it accepts itself, and a bound."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pipelines.core.config import ConfigIssues
from pipelines.core.training_arguments import ALLOWED
from pipelines.trainers.arguments import checked_with, split
from pipelines.trainers.ppo_settings import SETTINGS, PPOSettings


def test_the_table_and_the_class_say_the_same():
    assert [field.name for field in dataclasses.fields(PPOSettings)] == [
        "response_length",
        "temperature",
        "top_p",
        "top_k",
        "local_rollout_forward_batch_size",
        "missing_eos_penalty",
        "length_penalty",
        "reward_clip",
        "reward_normalization",
        "whiten_rewards",
        "whiten_advantages",
        "gamma",
        "lam",
        "kl_coef",
        "kl_estimator",
        "kl_target",
        "kl_horizon",
        "num_ppo_epochs",
        "num_mini_batches",
        "cliprange",
        "cliprange_value",
        "vf_coef",
        "entropy_coef",
        "target_kl",
        "ptx_coef",
    ]
    assert {field.name for field in dataclasses.fields(PPOSettings)} == set(SETTINGS)
    assert not set(SETTINGS) & set(ALLOWED)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_default_is_one_that_a_recipe_could_write(name: str):
    assert SETTINGS[name].misfit(SETTINGS[name].default) is None


def test_whole_numbers_may_stand_for_floats():
    found = PPOSettings.of(split({"gamma": 1, "kl_coef": 0, "learning_rate": 1e-4}, SETTINGS)[0])
    assert (found.gamma, found.kl_coef) == (1.0, 0.0)
    assert isinstance(found.gamma, float)


@pytest.mark.parametrize(
    "wrong",
    [
        {"response_length": 0},
        {"temperature": 0},
        {"num_ppo_epochs": 1.5},
        {"kl_coef": -1},
        {"kl_estimator": "k4"},
        {"reward_normalization": "batch"},
        {"whiten_rewards": 1},
    ],
)
def test_what_no_run_could_use_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ConfigIssues):
        checked_with(SETTINGS)(wrong)
