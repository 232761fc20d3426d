"""How much better each token was than expected: rewards per token, generalized advantage estimation, whitening.

Everything here is (rows, length): one row a completion, one column a token of it. `mask` says which columns belong to the
completion; they are the first ones of each row. A value at column t is of the state from which token t was chosen.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Total = Callable[[Tensor], Tensor]
"""Adds a tensor up over the processes that share a batch."""


def alone(tensor: Tensor) -> Tensor:
    """The total of one process."""
    return tensor


def token_rewards(scores: Tensor, kl: Tensor, mask: Tensor, kl_coef: float) -> Tensor:
    """What each token earns: the score (rows,) at the last one, and at every one -kl_coef times its `kl` (rows, length).

    Ziegler et al. 2019, "Fine-Tuning Language Models from Human Preferences", equation 2, arxiv.org/abs/1909.08593: the
    penalty belongs to the reward, so that it counts in the advantage of the tokens before it too.
    """
    rewards = -kl_coef * kl * mask
    last = mask.sum(1, keepdim=True) - 1  # (rows, 1)
    return rewards.scatter_add(1, last.clamp(min=0), (scores[:, None] * (last >= 0)).to(rewards.dtype))


def generalized_advantages(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """(advantages, returns that the value function should have named), both (rows, length), 0 outside the mask.

    Schulman et al. 2015, "High-Dimensional Continuous Control Using Generalized Advantage Estimation", equations 11, 12 and
    16, arxiv.org/abs/1506.02438: delta_t = r_t + gamma V(s_t+1) - V(s_t), and A_t is the sum over l of (gamma lam)^l delta_t+l.
    That sum is a product with a triangular matrix of powers. Nothing comes after the last token: the value there is 0.
    """
    values = values * mask
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    deltas = (rewards + gamma * following - values) * mask
    places = torch.arange(values.shape[1], device=values.device)
    ahead = places[:, None] - places[None, :]  # (later, now): how far the one lies behind the other
    weights = torch.where(ahead >= 0, (gamma * lam) ** ahead.clamp(min=0).to(values.dtype), 0.0)
    advantages = (deltas @ weights) * mask
    return advantages, (advantages + values) * mask


def whitened(values: Tensor, mask: Tensor, shift_mean: bool = True, total: Total = alone) -> Tensor:
    """`values` (rows, length) with variance 1 over all that is in the mask, and mean 0 unless `shift_mean` is off; 0 elsewhere.

    Rewards are whitened without shifting their mean, which would give a token a sign that it has not earned, advantages with it:
    Huang et al. 2023, "The N Implementation Details of RLHF with PPO", policy training 9, huggingface.co/blog. The variance is
    that of a population, over the batches of all processes.
    """
    mean, variance = moments(values, mask, total)
    scaled = (values - mean) * torch.rsqrt(variance + 1e-8)
    return (scaled if shift_mean else scaled + mean) * mask


def moments(values: Tensor, mask: Tensor, total: Total = alone) -> tuple[Tensor, Tensor]:
    """(mean (), population variance ()) of what is in the mask, over all processes."""
    kept = values * mask
    count, summed = total(torch.stack([mask.sum().to(kept.dtype), kept.sum()]))
    mean = summed / count.clamp(min=1)
    return mean, total((((kept - mean) * mask) ** 2).sum()) / count.clamp(min=1)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor, total: Total = alone) -> float:
    """1 - Var(returns - values) / Var(returns): 1 for a value function that knows everything, 0 or less for one that knows nothing."""
    _, left = moments(returns - values, mask, total)
    _, whole = moments(returns, mask, total)
    return float(1 - left / whole) if float(whole) > 0 else 0.0
