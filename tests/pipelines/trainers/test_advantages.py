"""Rewards per token, advantages and whitening: against numbers worked out by hand, and against slow loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.trainers.ppo_losses import explained_variance, generalized_advantages, moments, token_rewards, whitened


def masked(lengths: list[int], width: int) -> torch.Tensor:
    return torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]


def slow_advantages(
    rewards: list[float], values: list[float], gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """The recursion A_t = delta_t + gamma lam A_t+1, from the last token back: equation 16 written otherwise."""
    advantages = [0.0] * len(rewards)
    ahead, value_ahead = 0.0, 0.0
    for place in reversed(range(len(rewards))):
        ahead = rewards[place] + gamma * value_ahead - values[place] + gamma * lam * ahead
        advantages[place], value_ahead = ahead, values[place]
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]


def test_advantages_by_hand():
    """Two tokens with values 0.5 and 0.25, rewards 0 and 1, gamma 0.9, lambda 0.5.

    delta_2 = 1 - 0.25 = 0.75; delta_1 = 0 + 0.9 * 0.25 - 0.5 = -0.275; A_1 = -0.275 + 0.45 * 0.75 = 0.0625.
    """
    advantages, returns = generalized_advantages(
        torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.25]]), torch.ones(1, 2, dtype=torch.bool), gamma=0.9, lam=0.5
    )
    torch.testing.assert_close(advantages, torch.tensor([[0.0625, 0.75]]))
    torch.testing.assert_close(returns, torch.tensor([[0.5625, 1.0]]))


def test_with_lambda_1_an_advantage_is_what_is_still_earned_less_the_value():
    rewards, values = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.5, 0.5, 0.5]])
    advantages, returns = generalized_advantages(
        rewards, values, torch.ones(1, 3, dtype=torch.bool), gamma=1.0, lam=1.0
    )
    torch.testing.assert_close(returns, torch.tensor([[6.0, 5.0, 3.0]]))
    torch.testing.assert_close(advantages, torch.tensor([[5.5, 4.5, 2.5]]))


def test_with_lambda_0_an_advantage_is_one_step_of_surprise():
    rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.2, 0.6]])
    advantages, _ = generalized_advantages(rewards, values, torch.ones(1, 2, dtype=torch.bool), gamma=0.5, lam=0.0)
    torch.testing.assert_close(advantages, torch.tensor([[0.5 * 0.6 - 0.2, 1 - 0.6]]))


numbers = st.floats(-3, 3, allow_nan=False, width=32)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_advantages_are_those_of_the_recursion_whatever_stands_behind_the_end(data: Any, gamma: float, lam: float):
    width = data.draw(st.integers(1, 7))
    lengths = data.draw(st.lists(st.integers(1, width), min_size=1, max_size=4))
    rewards = torch.tensor([[data.draw(numbers) for _ in range(width)] for _ in lengths], dtype=torch.float64)
    values = torch.tensor([[data.draw(numbers) for _ in range(width)] for _ in lengths], dtype=torch.float64)
    mask = masked(lengths, width)
    advantages, returns = generalized_advantages(rewards, values, mask, gamma, lam)
    for row, length in enumerate(lengths):
        wanted, due = slow_advantages(rewards[row, :length].tolist(), values[row, :length].tolist(), gamma, lam)
        torch.testing.assert_close(advantages[row, :length], torch.tensor(wanted, dtype=torch.float64))
        torch.testing.assert_close(returns[row, :length], torch.tensor(due, dtype=torch.float64))
        assert not advantages[row, length:].any()
        assert not returns[row, length:].any()


def test_the_score_stands_at_the_last_token_and_the_penalty_at_every_one():
    kl = torch.tensor([[0.1, 0.2, 9.0], [0.3, 0.0, -0.1]])
    rewards = token_rewards(torch.tensor([2.0, -1.0]), kl, masked([2, 3], 3), kl_coef=0.5)
    torch.testing.assert_close(rewards, torch.tensor([[-0.05, -0.1 + 2.0, 0.0], [-0.15, 0.0, 0.05 - 1.0]]))


def test_whitening_by_hand():
    """1 and 3 have mean 2 and population variance 1."""
    values = torch.tensor([[1.0, 3.0, 77.0]])
    mask = masked([2], 3)
    torch.testing.assert_close(whitened(values, mask), torch.tensor([[-1.0, 1.0, 0.0]]))
    torch.testing.assert_close(whitened(values, mask, shift_mean=False), torch.tensor([[1.0, 3.0, 0.0]]))


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=2, max_size=4), data=st.data())
def test_whitened_values_have_mean_0_and_variance_1(values: list[list[float]], data: Any):
    mask = masked([data.draw(st.integers(1, 3)) for _ in values], 3)
    table = torch.tensor(values, dtype=torch.float64)
    kept = table[mask]
    variance = float(((kept - kept.mean()) ** 2).mean())
    found = whitened(table, mask)
    assert not found[~mask].any()
    if variance > 1e-3:
        assert found[mask].mean() == pytest.approx(0, abs=1e-6)
        assert float((found[mask] ** 2).mean()) == pytest.approx(1, rel=1e-3)
    back = whitened(table, mask, shift_mean=False)
    torch.testing.assert_close((back - kept.mean())[mask], found[mask])


def test_moments_are_those_of_all_processes():
    first, second = torch.tensor([[1.0, 2.0]]), torch.tensor([[6.0]])
    sums = [first.new_tensor([2.0, 3.0]), first.new_tensor([1.0, 6.0])]

    def total(tensor: torch.Tensor) -> torch.Tensor:
        """What the other process adds: first its count and sum, then its squared distance from the common mean of 3."""
        return tensor + (sums[1] if tensor.shape == (2,) else (second - 3).square().sum())

    mean, variance = moments(first, torch.ones(1, 2, dtype=torch.bool), total)
    assert float(mean) == 3
    assert float(variance) == pytest.approx(((1 - 3) ** 2 + (2 - 3) ** 2 + (6 - 3) ** 2) / 3)


def test_explained_variance():
    mask = masked([2, 1], 2)
    returns = torch.tensor([[1.0, 3.0], [5.0, 0.0]])
    assert explained_variance(returns, returns, mask) == 1
    assert explained_variance(torch.zeros(2, 2), returns, mask) == 0
    assert explained_variance(-returns, returns, mask) == pytest.approx(1 - 4)
    assert explained_variance(returns, torch.ones(2, 2), mask) == 0  # nothing to explain
    assert math.isfinite(explained_variance(returns, torch.zeros(2, 2), mask))
