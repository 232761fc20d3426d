"""The losses of PPO: by hand, against a slow token by token version, and against the formulas that TRL computed.

From rewards to scores: running moments against all numbers at once, the order of clipping and penalties, what is refused.

KL estimators against the exact divergence, by hand and by sampling; controllers against the paper's arithmetic.

Rewards per token, advantages and whitening: against numbers worked out by hand, and against slow loops.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import StageError
from pipelines.trainers.ppo_losses import (
    AdaptiveKL,
    FixedKL,
    RunningMoments,
    checked,
    combined,
    estimated_kl,
    explained_variance,
    generalized_advantages,
    moments,
    policy_loss,
    shaped,
    token_rewards,
    value_loss,
    whitened,
)
from pipelines.trainers.ppo_settings import PPOArguments

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


def test_estimators_by_hand():
    """p = 0.5 and q = 0.25: r = 0.5, log r = -ln 2."""
    p, q = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    assert float(estimated_kl(p, q, "k1")) == pytest.approx(math.log(2))
    assert float(estimated_kl(p, q, "k2")) == pytest.approx(math.log(2) ** 2 / 2)
    assert float(estimated_kl(p, q, "k3")) == pytest.approx(0.5 - 1 + math.log(2))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_every_estimator_is_0_where_the_models_agree(estimator: str):
    same = torch.tensor([-0.3, -2.0])
    assert estimated_kl(same, same, estimator).tolist() == [0, 0]  # type: ignore[arg-type]


logits = st.lists(st.floats(-2, 2, allow_nan=False), min_size=4, max_size=4)


@settings(max_examples=50, deadline=None)
@given(policy=logits, reference=logits)
def test_the_expectation_of_k1_and_k3_is_the_divergence(policy: list[float], reference: list[float]):
    p, q = (torch.tensor(each, dtype=torch.float64).log_softmax(-1) for each in (policy, reference))
    exact = float((p.exp() * (p - q)).sum())
    for estimator in ("k1", "k3"):
        assert float((p.exp() * estimated_kl(p, q, estimator)).sum()) == pytest.approx(exact, abs=1e-9)  # type: ignore[arg-type]
    assert (estimated_kl(p, q, "k3") >= -1e-12).all()
    assert (estimated_kl(p, q, "k2") >= 0).all()


def test_k3_varies_less_than_k1_where_the_models_are_close():
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(50, generator=generator, dtype=torch.float64).log_softmax(-1)
    q = (p + 0.1 * torch.randn(50, generator=generator, dtype=torch.float64)).log_softmax(-1)
    drawn = torch.multinomial(p.exp(), 5000, replacement=True, generator=generator)
    assert estimated_kl(p[drawn], q[drawn], "k3").std() < 0.2 * estimated_kl(p[drawn], q[drawn], "k1").std()


def test_a_fixed_penalty_stays():
    controller = FixedKL(0.05)
    controller.update(100.0, 512)
    assert controller.coefficient == 0.05


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (6.0, 1.0),
        (6.6, 1 + 0.1 * 256 / 10_000),
        (60.0, 1 + 0.2 * 256 / 10_000),  # the error counts as 0.2 at most
        (0.0, 1 - 0.2 * 256 / 10_000),
    ],
)
def test_the_adaptive_penalty_by_hand(kl: float, factor: float):
    controller = AdaptiveKL(0.15, target=6.0, horizon=10_000)
    controller.update(kl, 256)
    assert controller.coefficient == pytest.approx(0.15 * factor)


def test_the_adaptive_penalty_never_becomes_a_bonus():
    controller = AdaptiveKL(0.1, target=1.0, horizon=10)
    controller.update(0.0, 512)
    assert controller.coefficient == 0.0


def test_the_state_goes_through_json_to_the_bit():
    controller = AdaptiveKL(0.1, target=3.0, horizon=977)
    for kl in (1.0, 7.0, 2.9):
        controller.update(kl, 31)
    other = AdaptiveKL(0.5, target=3.0, horizon=977)
    other.restore(json.loads(json.dumps(controller.state())))
    assert other.coefficient == controller.coefficient


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
