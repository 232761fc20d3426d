"""How far a policy has gone from its reference, estimated on sampled tokens, and what that costs: fixed, or steered to a target.

The estimators are Schulman's (2020, "Approximating KL Divergence", joschu.net/blog/kl-approx.html). The tokens were sampled from
the policy p, the reference is q, and r = q/p at the sampled token; KL(p, q) is the mean of

- k1 = -log r: unbiased, but of high variance, and negative as often as not while p and q are close;
- k2 = (log r)^2 / 2: never negative, of low variance, a little biased;
- k3 = (r - 1) - log r: never negative, unbiased, of low variance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]
MOST_ERROR = 0.2
"""The proportional error that the adaptive controller reacts to at most."""


def estimated_kl(log_probabilities: Tensor, reference: Tensor, estimator: Estimator = "k1") -> Tensor:
    """KL(policy, reference) in nats, estimated at each token. Both arguments are log-probabilities of the sampled tokens (…)."""
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

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON."""
        return {"coefficient": self.coefficient}

    def restore(self, state: Mapping[str, Any]) -> None:
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
