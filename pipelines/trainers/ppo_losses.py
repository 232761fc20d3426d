"""The arithmetic of PPO: scores, the KL penalty, generalized advantage estimation, and clipped losses.

Scores are what the reward says of a completion, normalised, clipped, and less the penalties. The KL of the policy to
its reference is estimated on sampled tokens, by Schulman's estimators (2020, "Approximating KL Divergence",
joschu.net/blog/kl-approx.html). The tokens were sampled from the policy p, the reference is q, and r = q/p at the
sampled token; KL(p, q) is the mean of

- k1 = -log r: unbiased, but of high variance, and negative as often as not while p and q are close;
- k2 = (log r)^2 / 2: never negative, of low variance, a little biased;
- k3 = (r - 1) - log r: never negative, unbiased, of low variance.

Advantages and losses are (rows, length): one row a completion, one column a token of it. `mask` says which columns
belong to the completion; they are the first ones of each row. A value at column t is of the state from which token t
was chosen. Losses are sums over tokens (Schulman et al. 2017, "Proximal Policy Optimization Algorithms",
arxiv.org/abs/1707.06347); the caller divides by the tokens of the whole minibatch, over micro-batches and processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pipelines.core.errors import StageError
from pipelines.trainers.ppo_settings import PPOArguments


class RunningMoments:
    """Mean and variance of every score so far, over all processes: merged batch by batch.

    Chan, Golub and LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances".
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0
        """Sum of the squared distances from the mean."""

    @property
    def deviation(self) -> float:
        """The standard deviation of the population; 1 before there is one."""
        return math.sqrt(self.squares / self.count) if self.count and self.squares > 0 else 1.0

    def add(self, scores: Sequence[float]) -> None:
        """Take in a batch."""
        if not scores:
            return
        count, mean = len(scores), math.fsum(scores) / len(scores)
        squares = math.fsum((score - mean) ** 2 for score in scores)
        total, apart = self.count + count, mean - self.mean
        self.squares += squares + apart**2 * self.count * count / total
        self.mean += apart * count / total
        self.count = total

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps of it, as JSON."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def restore(self, state: Mapping[str, float]) -> None:
        """Take back what `state` gave."""
        self.count, self.mean, self.squares = int(state["count"]), float(state["mean"]), float(state["squares"])


def shaped(
    scores: Tensor, ended: Tensor, lengths: Tensor, settings: PPOArguments, moments_so_far: RunningMoments
) -> Tensor:
    """The scores (rows,) that PPO learns from.

    First normalised by the moments of all scores so far and then clipped: Zheng et al. 2023, "Secrets of RLHF in
    Large Language Models Part I: PPO", on score reparameterization, arxiv.org/abs/2307.04964. Then less
    `length_penalty` for each token, and less `missing_eos_penalty` where the completion has no end, so that a policy
    learns to stop: the EOS trick of Huang et al. 2024, "The N+ Implementation Details of RLHF with PPO",
    arxiv.org/abs/2403.17031, as TRL does it.
    """
    if settings.reward_normalization == "running":
        scores = (scores - moments_so_far.mean) / (moments_so_far.deviation + 1e-8)
    if settings.reward_clip is not None:
        scores = scores.clamp(-settings.reward_clip, settings.reward_clip)
    scores = scores - settings.length_penalty * lengths
    if settings.missing_eos_penalty is not None:
        scores = scores - settings.missing_eos_penalty * (~ended).to(scores.dtype)
    return scores


def checked(scores: Sequence[float], count: int) -> Tensor:
    """The reward's numbers (rows,), fp32. Raises StageError when they are not one finite number a completion."""
    if len(scores) != count:
        raise StageError(f"the reward gave {len(scores)} scores for {count} completions; it must give one each")
    wrong = next((score for score in scores if not math.isfinite(score)), None)
    if wrong is not None:
        raise StageError(f"the reward gave {wrong} for a completion; a policy can only learn from finite numbers")
    return torch.tensor([float(score) for score in scores], dtype=torch.float32)


Estimator = Literal["k1", "k2", "k3"]
MOST_ERROR = 0.2
"""The proportional error that the adaptive controller reacts to at most."""


def estimated_kl(log_probabilities: Tensor, reference: Tensor, estimator: Estimator = "k1") -> Tensor:
    """KL(policy, reference) in nats, estimated at each token. Both arguments are log-probabilities of the sampled
    tokens (…)."""
    log_ratio = reference - log_probabilities
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return log_ratio**2 / 2
    return torch.expm1(log_ratio) - log_ratio


class FixedKL:
    """A penalty that stays what it is."""

    def __init__(self, coefficient: float) -> None:
        self.coefficient = coefficient

    def update(self, kl: float, samples: int) -> None:
        """Take note of the mean KL of `samples` completions."""

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps of it, as JSON."""
        return {"coefficient": self.coefficient}

    def restore(self, state: Mapping[str, float]) -> None:
        """Take back what `state` gave."""
        self.coefficient = float(state["coefficient"])


class AdaptiveKL(FixedKL):
    """A penalty that rises while the KL of a completion is above the target, and falls while it is below.

    Ziegler et al. 2019, section 2.2, arxiv.org/abs/1909.08593: e = clip((KL - target) / target, -0.2, 0.2), and the
    coefficient is multiplied by 1 + e * samples / horizon.
    """

    def __init__(self, coefficient: float, target: float, horizon: int) -> None:
        super().__init__(coefficient)
        self.target = target
        self.horizon = horizon

    def update(self, kl: float, samples: int) -> None:
        error = min(max(kl / self.target - 1, -MOST_ERROR), MOST_ERROR)
        self.coefficient *= max(1 + error * samples / self.horizon, 0.0)


Total = Callable[[Tensor], Tensor]
"""Adds a tensor up over the processes that share a batch."""


def alone(tensor: Tensor) -> Tensor:
    """The total of one process."""
    return tensor


def token_rewards(scores: Tensor, kl: Tensor, mask: Tensor, kl_coef: float) -> Tensor:
    """What each token earns: the score (rows,) at the last one, and at every one -kl_coef times its `kl` (rows,
    length).

    Ziegler et al. 2019, "Fine-Tuning Language Models from Human Preferences", equation 2, arxiv.org/abs/1909.08593: the
    penalty belongs to the reward, so that it counts in the advantage of the tokens before it too.
    """
    rewards = -kl_coef * kl * mask
    last = mask.sum(1, keepdim=True) - 1  # (rows, 1)
    return rewards.scatter_add(1, last.clamp(min=0), (scores[:, None] * (last >= 0)).to(rewards.dtype))


def generalized_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """(advantages, returns that the value function should have named), both (rows, length), 0 outside the mask.

    Schulman et al. 2015, "High-Dimensional Continuous Control Using Generalized Advantage Estimation", equations 11,
    12 and 16, arxiv.org/abs/1506.02438: delta_t = r_t + gamma V(s_t+1) - V(s_t), and A_t is the sum over l of (gamma
    lam)^l delta_t+l. That sum is a product with a triangular matrix of powers. Nothing comes after the last token:
    the value there is 0.
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
    """`values` (rows, length) with variance 1 over all that is in the mask, and mean 0 unless `shift_mean` is off; 0
    elsewhere.

    Rewards are whitened without shifting their mean, which would give a token a sign that it has not earned,
    advantages with it: Huang et al. 2023, "The N Implementation Details of RLHF with PPO", policy training 9,
    huggingface.co/blog. The variance is that of a population, over the batches of all processes.
    """
    mean, variance = moments(values, mask, total)
    scaled = (values - mean) * torch.rsqrt(variance + 1e-8)
    return (scaled if shift_mean else scaled + mean) * mask


def moments(values: Tensor, mask: Tensor, total: Total = alone) -> tuple[Tensor, Tensor]:
    """(mean (), population variance ()) of what is in the mask, over all processes."""
    inside = values * mask
    count, summed = total(torch.stack([mask.sum().to(inside.dtype), inside.sum()]))
    mean = summed / count.clamp(min=1)
    return mean, total((((inside - mean) * mask) ** 2).sum()) / count.clamp(min=1)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor, total: Total = alone) -> float:
    """1 - Var(returns - values) / Var(returns): 1 for a value function that knows everything, 0 or less for one
    that knows nothing."""
    _, left = moments(returns - values, mask, total)
    _, whole = moments(returns, mask, total)
    return float(1 - left / whole) if float(whole) > 0 else 0.0


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

    `new` and `old` are the log-probabilities of the sampled tokens under the policy that learns and the one that
    sampled. The minimum makes the objective a lower bound: a step that would only raise it beyond the range gets no
    gradient, one that repairs a bad move does.
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
    """Half the squared error to `returns`, of the value or of the value held within `cliprange` of the old one,
    whichever is larger.

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
