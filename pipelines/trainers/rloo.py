"""The stage of REINFORCE with a leave-one-out baseline, by TRL.

Ahmadian et al. 2024, "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in
LLMs", section 3.2, arxiv.org/abs/2402.14740: the baseline of each completion is the mean reward of the others of its
prompt.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pipelines.core.training_arguments import Count, NotNegative, Switch
from pipelines.trainers.trl_stage import GroupArguments, GroupSampling


class RLOOArguments(GroupArguments):
    """TRL's numbers of RLOO, with its defaults."""

    num_generations: Count = 2
    """Completions of a prompt: its group."""
    beta: NotNegative = 0.05
    """The weight of the KL to the reference."""
    normalize_advantages: Switch = False
    """Divide advantages by their standard deviation."""


class RLOO(GroupSampling):
    """Move a policy towards those of its completions that a reward likes better than the others of the same prompt."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: rloo, from: text, reward: {name: keyword, words: [good]}, "
        "prompts: {path: builtin/python-docs, max_length: 16}}",
        "{stage: rloo, id: left, from: text, reward: {name: keyword, words: [good]}, "
        "prompts: {path: builtin/python-docs}, tuner: lora, arguments: {num_generations: 4, beta: 0.1, "
        "normalize_advantages: true, max_completion_length: 32}}",
    )
    stage: Literal["rloo"] = "rloo"
    arguments: RLOOArguments = RLOOArguments()
    """transformers TrainingArguments by name, `global_batch_size` (completions of a step), and TRL's
    `num_generations` (2), `max_completion_length` (128), `beta` (0.05), `temperature`, `epsilon`,
    `normalize_advantages`, …. See docs/how-to/preference-optimisation.md."""

    method: ClassVar[str] = "RLOO"
