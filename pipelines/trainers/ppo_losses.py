"""The losses of proximal policy optimization, as sums over tokens: clipped policy, clipped value, entropy.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arxiv.org/abs/1707.06347. All arguments are (rows, length) with a
`mask` of the tokens that count; the caller divides by the tokens of the whole minibatch, over micro-batches and processes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PolicyLoss(NamedTuple):
    """The clipped surrogate and what it tells of the step. All are sums over tokens ()."""

    loss: Tensor
    clipped: Tensor
    """Tokens whose ratio the clipping held back."""
    moved: Tensor
    """Of KL(old policy, new policy) by the estimator k3: how far this update has gone."""
    ratio: Tensor


class ValueLoss(NamedTuple):
    """The clipped squared error. Both are sums over tokens ()."""

    loss: Tensor
    clipped: Tensor
    """Tokens whose value the clipping held back."""


def policy_loss(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, cliprange: float) -> PolicyLoss:
    """-min(ratio A, clip(ratio, 1 - cliprange, 1 + cliprange) A) with ratio = exp(new - old): equation 7.

    `new` and `old` are the log-probabilities of the sampled tokens under the policy that learns and the one that sampled.
    The minimum makes the objective a lower bound: a step that would only raise it beyond the range gets no gradient, one
    that repairs a bad move does.
    """
    log_ratio = (new - old).masked_fill(~mask, 0.0)
    ratio = log_ratio.exp()
    free, held = -advantages * ratio, -advantages * ratio.clamp(1 - cliprange, 1 + cliprange)
    with torch.no_grad():
        clipped = ((held > free) & mask).sum()
        moved = (torch.expm1(log_ratio) - log_ratio).sum()
        summed = (ratio * mask).sum()
    return PolicyLoss((torch.maximum(free, held) * mask).sum(), clipped, moved, summed)


def value_loss(new: Tensor, old: Tensor, returns: Tensor, mask: Tensor, cliprange: float) -> ValueLoss:
    """Half the squared error to `returns`, of the value or of the value held within `cliprange` of the old one, whichever is larger.

    Not in the paper, but in its authors' code and in all that followed it: Huang et al. 2023, policy training 10,
    huggingface.co/blog/the_n_implementation_details_of_rlhf_with_ppo.
    """
    held = old + (new - old).clamp(-cliprange, cliprange)
    free_error, held_error = (new - returns) ** 2, (held - returns) ** 2
    clipped = ((held_error > free_error) & mask).sum()
    return ValueLoss((torch.maximum(free_error, held_error) * mask).sum() / 2, clipped)


def combined(policy: Tensor, value: Tensor, entropy: Tensor, vf_coef: float, entropy_coef: float) -> Tensor:
    """What is minimised: policy loss + vf_coef value loss - entropy_coef entropy. Equation 9 with its sign turned."""
    total = policy + vf_coef * value
    return total - entropy_coef * entropy if entropy_coef else total
