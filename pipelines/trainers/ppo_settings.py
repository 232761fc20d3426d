"""The numbers of PPO that a recipe may set among `arguments`, under TRL's names where TRL has them.

docs/how-to/ppo.md says what they do, and where they come from.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pipelines.core.training_arguments import (
    Accepts,
    Count,
    Every,
    NotNegative,
    OptionalNotNegative,
    OptionalPositive,
    Positive,
    Switch,
    TrainingArguments,
    choice,
)


class PPOArguments(TrainingArguments):
    """transformers TrainingArguments by name, `global_batch_size` (prompts of an iteration), and PPO's own numbers."""

    logging_steps: Every = 1
    """Iterations between two logs; below 1 a share of all iterations."""
    # what is sampled
    response_length: Count = 53
    """Tokens of a completion at most."""
    temperature: Positive = 1.0
    """Divides the logits, of what is sampled and of every log-probability."""
    top_p: Positive = 1.0
    """Sample from the likeliest tokens that hold so much probability."""
    top_k: Annotated[int, Accepts("int", at_least=0)] = 0
    """Sample from so many of the likeliest tokens; 0 takes all."""
    local_rollout_forward_batch_size: Count = 64
    """Completions that are written, and read without gradients, at a time."""
    # what it is worth
    missing_eos_penalty: OptionalNotNegative = None
    """Taken from the score of a completion that does not come to its end."""
    length_penalty: NotNegative = 0.0
    """Taken from the score for every token."""
    reward_clip: OptionalPositive = None
    """Scores are held between minus and plus this."""
    reward_normalization: Annotated[str | None, Accepts("=running|null")] = None
    """`running`: scores are divided by the standard deviation of all so far, their mean taken away."""
    whiten_rewards: Switch = False
    """Divide rewards by their standard deviation."""
    whiten_advantages: Switch = True
    """Take the mean from advantages, and divide them by their standard deviation."""
    gamma: NotNegative = 1.0
    """How much a reward counts one token earlier."""
    lam: NotNegative = 0.95
    """λ of generalized advantage estimation: 0 trusts the value function, 1 the rewards."""
    # how far the policy may go from its reference
    kl_coef: NotNegative = 0.05
    """The weight of the KL to the reference."""
    kl_estimator: Annotated[Literal["k1", "k2", "k3"], Accepts(choice("k1", "k2", "k3"))] = "k1"
    """How the KL is estimated on sampled tokens."""
    kl_target: OptionalPositive = None
    """The KL of a completion that `kl_coef` is steered towards. Default: `kl_coef` stays."""
    kl_horizon: Count = 10_000
    """Completions over which it is steered."""
    # how it learns from what it sampled
    num_ppo_epochs: Count = 4
    """Passes over the completions of an iteration."""
    num_mini_batches: Count = 1
    """Updates of each pass."""
    cliprange: Positive = 0.2
    """How far a probability ratio may go from 1."""
    cliprange_value: Positive = 0.2
    """How far a value may go from what it was."""
    vf_coef: NotNegative = 0.1
    """The weight of the value function's loss."""
    entropy_coef: NotNegative = 0.0
    """The weight of the entropy that is rewarded."""
    target_kl: OptionalPositive = None
    """KL between the policy that sampled and the one that learns, a token, after which an iteration has no further
    epoch."""
    ptx_coef: NotNegative = 0.0
    """The weight of the next-token loss on `datasets`, beside the PPO loss."""
