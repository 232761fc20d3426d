"""PPO's numbers: whole numbers stand for floats, and what no run could use is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.trainers.ppo_settings import PPOArguments


def test_whole_numbers_may_stand_for_floats():
    arguments = PPOArguments(gamma=1, kl_coef=0, learning_rate=1e-4)
    assert (arguments.gamma, arguments.kl_coef) == (1.0, 0.0)
    assert isinstance(arguments.gamma, float)


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
    with pytest.raises(ValidationError):
        PPOArguments.model_validate(wrong)
