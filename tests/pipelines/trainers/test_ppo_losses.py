"""The losses of PPO: by hand, against a slow token by token version, and against the formulas that TRL computed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.trainers.ppo_losses import combined, policy_loss, value_loss

ONE = torch.ones(1, dtype=torch.bool)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, 0),
        (1.5, 2.0, -2.4, 1),  # more than 1.2 times as likely is no better than 1.2 times
        (0.5, 2.0, -1.0, 0),  # a good token made unlikely is mended all the same
        (0.5, -2.0, 1.6, 1),  # a bad token need not become less likely than 0.8 times
        (1.5, -2.0, 3.0, 0),  # a bad token made likely is mended
    ],
)
def test_the_policy_loss_by_hand(ratio: float, advantage: float, loss: float, clipped: int):
    old = torch.tensor([-1.0])
    found = policy_loss(old + math.log(ratio), old, torch.tensor([advantage]), ONE, cliprange=0.2)
    assert float(found.loss) == pytest.approx(loss, rel=1e-6)
    assert int(found.clipped) == clipped
    assert float(found.ratio) == pytest.approx(ratio)
    assert float(found.moved) == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-6)


def test_a_clipped_token_has_no_gradient():
    new = torch.tensor([math.log(1.5), math.log(1.1)], requires_grad=True)
    policy_loss(new, torch.zeros(2), torch.ones(2), torch.ones(2, dtype=torch.bool), 0.2).loss.backward()
    torch.testing.assert_close(new.grad, torch.tensor([0.0, -1.1]))


@pytest.mark.parametrize(
    ("new", "old", "due", "loss", "clipped"),
    [
        (0.5, 0.4, 1.0, 0.125, 0),  # within the range: (1 - 0.5)^2 / 2
        (1.0, 0.4, 1.0, 0.08, 1),  # held at 0.6: (1 - 0.6)^2 / 2
        (-1.0, 0.4, 1.0, 2.0, 0),  # worse than where it is held: its own error counts
    ],
)
def test_the_value_loss_by_hand(new: float, old: float, due: float, loss: float, clipped: int):
    found = value_loss(torch.tensor([new]), torch.tensor([old]), torch.tensor([due]), ONE, cliprange=0.2)
    assert float(found.loss) == pytest.approx(loss, rel=1e-5)
    assert int(found.clipped) == clipped


def test_they_are_combined_with_their_weights():
    assert float(combined(torch.tensor(1.0), torch.tensor(4.0), torch.tensor(3.0), 0.1, 0.5)) == pytest.approx(
        1 + 0.4 - 1.5
    )


def tensors(data: Any, shape: tuple[int, int], low: float = -2.0, high: float = 2.0) -> torch.Tensor:
    rows, columns = shape
    return torch.tensor(
        [[data.draw(st.floats(low, high, allow_nan=False)) for _ in range(columns)] for _ in range(rows)],
        dtype=torch.float64,
    )


@settings(max_examples=50, deadline=None)
@given(data=st.data(), cliprange=st.floats(0.05, 0.5))
def test_they_are_sums_of_what_each_token_adds(data: Any, cliprange: float):
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 4)))
    new, old, advantages, values, before, due = (tensors(data, shape) for _ in range(6))
    mask = torch.tensor([[data.draw(st.booleans()) for _ in range(shape[1])] for _ in range(shape[0])])
    policy = value = 0.0
    held_back = 0
    for row in range(shape[0]):
        for place in range(shape[1]):
            if not mask[row, place]:
                continue
            ratio = math.exp(float(new[row, place] - old[row, place]))
            held = min(max(ratio, 1 - cliprange), 1 + cliprange)
            gain, held_gain = ratio * float(advantages[row, place]), held * float(advantages[row, place])
            policy -= min(gain, held_gain)
            held_back += held_gain < gain
            target, said, was = float(due[row, place]), float(values[row, place]), float(before[row, place])
            near = min(max(said, was - cliprange), was + cliprange)
            value += max((said - target) ** 2, (near - target) ** 2) / 2
    found = policy_loss(new, old, advantages, mask, cliprange)
    assert float(found.loss) == pytest.approx(policy, rel=1e-9, abs=1e-9)
    assert int(found.clipped) == held_back
    assert float(value_loss(values, before, due, mask, cliprange).loss) == pytest.approx(value, rel=1e-9, abs=1e-9)


def trl_loss(
    new: Any,
    old: Any,
    advantages: Any,
    values: Any,
    before: Any,
    due: Any,
    mask: Any,
    clip: float,
    clip_value: float,
    vf_coef: float,
) -> Any:
    """What TRL 1.12's PPO trainer minimises for a micro-batch, from its definition: means over the tokens that count."""

    def mean(table: Any) -> Any:
        return (table * mask).sum() / mask.sum()

    ratio = (new - old).exp()
    policy = mean(torch.stack([-advantages * ratio, -advantages * ratio.clip(1 - clip, 1 + clip)]).amax(0))
    near = torch.minimum(torch.maximum(values, before - clip_value), before + clip_value)
    value = mean(torch.stack([(values - due).square(), (near - due).square()]).amax(0)) / 2
    return policy + vf_coef * value


def test_the_mean_over_tokens_and_its_gradient_are_trls():
    generator = torch.Generator().manual_seed(3)
    new, old, advantages, values, before, due = (
        torch.randn(4, 6, generator=generator, dtype=torch.float64) for _ in range(6)
    )
    mask = torch.rand(4, 6, generator=generator) < 0.7
    found = []
    for ours in (True, False):
        said, told = new.clone().requires_grad_(), values.clone().requires_grad_()
        if ours:
            policy, value = (
                policy_loss(said, old, advantages, mask, 0.2).loss,
                value_loss(told, before, due, mask, 0.3).loss,
            )
            loss = combined(policy, value, torch.zeros(()), 0.1, 0.0) / mask.sum()
        else:
            loss = trl_loss(said, old, advantages, told, before, due, mask, 0.2, 0.3, 0.1)
        loss.backward()
        assert said.grad is not None
        assert told.grad is not None
        found.append((loss.detach(), said.grad, told.grad))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
