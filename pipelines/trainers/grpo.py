"""The stage of group relative policy optimization, by TRL.

Shao et al. 2024, "DeepSeekMath", section 4.1, arxiv.org/abs/2402.03300: several completions of a prompt are sampled,
and the advantage of each is how far its reward lies above the mean of its group; no value function is learnt.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pipelines.core.training_arguments import Accepts, NotNegative, choice
from pipelines.trainers.trl_stage import GroupArguments, GroupSampling


class GRPOArguments(GroupArguments):
    """TRL's numbers of GRPO, with its defaults."""

    loss_type: Annotated[str, Accepts(choice("dapo", "grpo", "bnpo", "dr_grpo"))] = "dapo"
    """How the losses of tokens are put together."""
    scale_rewards: Annotated[str, Accepts(choice("group", "batch", "none"))] = "group"
    """By whose standard deviation rewards are divided."""
    importance_sampling_level: Annotated[str, Accepts(choice("token", "sequence"))] = "token"
    """Whether probability ratios are those of tokens or of whole completions."""
    entropy_coef: NotNegative = 0.0
    """The weight of the entropy that is rewarded."""


class GRPO(GroupSampling):
    """Move a policy towards those of its completions that a reward likes better than their group."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: grpo, from: text, reward: {name: keyword, words: [good]}, "
        "prompts: {path: builtin/python-docs, max_length: 16}}",
        "{stage: grpo, id: groups, from: text, reward: {name: keyword, words: [good]}, "
        "prompts: {path: builtin/python-docs}, tuner: {name: lora, r: 2}, arguments: {num_generations: 4, "
        "beta: 0.02, max_completion_length: 32, temperature: 0.9, loss_type: dr_grpo, scale_rewards: none, "
        "epsilon_high: 0.3}}",
    )
    stage: Literal["grpo"] = "grpo"
    arguments: GRPOArguments = GRPOArguments()
    """transformers TrainingArguments by name, `global_batch_size` (completions of a step), and TRL's
    `num_generations` (8), `max_completion_length` (128), `beta` (0), `temperature`, `epsilon`, `loss_type` (dapo),
    `scale_rewards`, …. See docs/how-to/preference-optimisation.md."""

    method: ClassVar[str] = "GRPO"
