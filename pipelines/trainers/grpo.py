"""The stage of group relative policy optimization, by TRL.

Shao et al. 2024, "DeepSeekMath", section 4.1, arxiv.org/abs/2402.03300: several completions of a prompt are sampled,
and the advantage of each is how far its reward lies above the mean of its group; no value function is learnt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from pipelines.core.training_arguments import COUNT, Argument
from pipelines.trainers.arguments import Setting, checked_with
from pipelines.trainers.trl_stage import NOT_NEGATIVE, SAMPLING, GroupSampling

SETTINGS: dict[str, Setting] = {
    **SAMPLING,
    "num_generations": Setting(COUNT, 8),
    "beta": Setting(NOT_NEGATIVE, 0.0),
    "loss_type": Setting(Argument("=dapo|=grpo|=bnpo|=dr_grpo"), "dapo"),
    "scale_rewards": Setting(Argument("=group|=batch|=none"), "group"),
    "importance_sampling_level": Setting(Argument("=token|=sequence"), "token"),
    "entropy_coef": Setting(NOT_NEGATIVE, 0.0),
}
"""TRL's own, with its defaults."""


class GRPO(GroupSampling):
    """Move a policy towards those of its completions that a reward likes better than their group."""

    stage: Literal["grpo"] = "grpo"
    arguments: Annotated[dict[str, Any], BeforeValidator(checked_with(SETTINGS))] = Field(default_factory=dict)
    """transformers TrainingArguments by name, `global_batch_size` (completions of a step), and TRL's
    `num_generations` (8), `max_completion_length` (128), `beta` (0), `temperature`, `epsilon`, `loss_type` (dapo),
    `scale_rewards`, …. See docs/preference-optimisation.md."""

    method: ClassVar[str] = "GRPO"
    settings: ClassVar[Mapping[str, Setting]] = SETTINGS
