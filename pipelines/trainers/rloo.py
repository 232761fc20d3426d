"""The stage of REINFORCE with a leave-one-out baseline, by TRL.

Ahmadian et al. 2024, "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in
LLMs", section 3.2, arxiv.org/abs/2402.14740: the baseline of each completion is the mean reward of the others of its
prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from pipelines.core.training_arguments import COUNT, SWITCH
from pipelines.trainers.arguments import Setting, checked_with
from pipelines.trainers.trl_stage import NOT_NEGATIVE, SAMPLING, GroupSampling

SETTINGS: dict[str, Setting] = {
    **SAMPLING,
    "num_generations": Setting(COUNT, 2),
    "beta": Setting(NOT_NEGATIVE, 0.05),
    "normalize_advantages": Setting(SWITCH, False),
}
"""TRL's own, with its defaults."""


class RLOO(GroupSampling):
    """Move a policy towards those of its completions that a reward likes better than the others of the same prompt."""

    stage: Literal["rloo"] = "rloo"
    arguments: Annotated[dict[str, Any], BeforeValidator(checked_with(SETTINGS))] = Field(default_factory=dict)
    """transformers TrainingArguments by name, `global_batch_size` (completions of a step), and TRL's
    `num_generations` (2), `max_completion_length` (128), `beta` (0.05), `temperature`, `epsilon`,
    `normalize_advantages`, …. See docs/preference-optimisation.md."""

    method: ClassVar[str] = "RLOO"
    settings: ClassVar[Mapping[str, Setting]] = SETTINGS
