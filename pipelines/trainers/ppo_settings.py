"""The numbers of PPO that a recipe may set among `arguments`, under TRL's names where TRL has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.core.training_arguments import COUNT, Argument
from pipelines.trainers.arguments import Setting

NOT_NEGATIVE = Argument("float", at_least=0)
POSITIVE = Argument("float", above=0)
SWITCH = Argument("bool")
OPTIONAL = Argument("float|null", above=0)

SETTINGS: dict[str, Setting] = {
    # what is sampled
    "response_length": Setting(COUNT, 53),
    "temperature": Setting(POSITIVE, 1.0),
    "top_p": Setting(POSITIVE, 1.0),
    "top_k": Setting(Argument("int", at_least=0), 0),
    "local_rollout_forward_batch_size": Setting(COUNT, 64),
    # what it is worth
    "missing_eos_penalty": Setting(Argument("float|null", at_least=0), None),
    "length_penalty": Setting(NOT_NEGATIVE, 0.0),
    "reward_clip": Setting(OPTIONAL, None),
    "reward_normalization": Setting(Argument("=running|null"), None),
    "whiten_rewards": Setting(SWITCH, False),
    "whiten_advantages": Setting(SWITCH, True),
    "gamma": Setting(NOT_NEGATIVE, 1.0),
    "lam": Setting(NOT_NEGATIVE, 0.95),
    # how far the policy may go from its reference
    "kl_coef": Setting(NOT_NEGATIVE, 0.05),
    "kl_estimator": Setting(Argument("=k1|=k2|=k3"), "k1"),
    "kl_target": Setting(OPTIONAL, None),
    "kl_horizon": Setting(COUNT, 10_000),
    # how it learns from what it sampled
    "num_ppo_epochs": Setting(COUNT, 4),
    "num_mini_batches": Setting(COUNT, 1),
    "cliprange": Setting(POSITIVE, 0.2),
    "cliprange_value": Setting(POSITIVE, 0.2),
    "vf_coef": Setting(NOT_NEGATIVE, 0.1),
    "entropy_coef": Setting(NOT_NEGATIVE, 0.0),
    "target_kl": Setting(OPTIONAL, None),
    "ptx_coef": Setting(NOT_NEGATIVE, 0.0),
}
"""Each with what it is when nothing is said. docs/ppo.md says what they do, and where they come from."""


@dataclass(frozen=True)
class PPOSettings:
    """The settings of one stage."""

    response_length: int
    """Tokens of a completion at most."""
    temperature: float
    """Divides the logits, of what is sampled and of every log-probability."""
    top_p: float
    top_k: int
    local_rollout_forward_batch_size: int
    """Completions that are written, and read without gradients, at a time."""
    missing_eos_penalty: float | None
    """Taken from the score of a completion that does not come to its end."""
    length_penalty: float
    """Taken from the score for every token."""
    reward_clip: float | None
    """Scores are held between minus and plus this."""
    reward_normalization: str | None
    """`running`: scores are divided by the standard deviation of all so far, their mean taken away."""
    whiten_rewards: bool
    whiten_advantages: bool
    gamma: float
    lam: float
    kl_coef: float
    kl_estimator: Any
    kl_target: float | None
    """The KL of a completion that `kl_coef` is steered towards; None leaves it as it is."""
    kl_horizon: int
    num_ppo_epochs: int
    num_mini_batches: int
    cliprange: float
    cliprange_value: float
    vf_coef: float
    entropy_coef: float
    target_kl: float | None
    """KL between the policy that sampled and the one that learns, a token, after which an iteration has no further
    epoch."""
    ptx_coef: float
    """The weight of the next-token loss on `datasets`, beside the PPO loss."""

    @classmethod
    def of(cls, own: Mapping[str, Any]) -> PPOSettings:
        """From what `own_arguments.split` took out."""
        numbers: dict[str, Any] = {
            name: float(value) if isinstance(SETTINGS[name].default, float) else value for name, value in own.items()
        }
        return cls(**numbers)
