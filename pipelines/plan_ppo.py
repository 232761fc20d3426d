"""What a ppo stage passes through its models, before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.plan_preferences import Asked
from pipelines.plan_sampling import PLAIN_PROMPT
from pipelines.protocols import Head
from pipelines.sizes import prompt_rows

if TYPE_CHECKING:
    from pipelines.recipe import Recipe

FORWARDS = 3
"""Passes without gradients of a completion: sampling it with keys and values kept, reading it again, the reference."""
PASSES = 3
"""A forward and a backward pass, in forward passes."""


def sampled(stage: Any, recipe: Recipe) -> Asked:
    """What the stage asks for: its examples are completions, learnt from `num_ppo_epochs` times."""
    from pipelines.trainers.policy import head_kind

    s = stage.settings
    head = Head(head_kind(recipe))  # type: ignore[arg-type]
    prompt = stage.prompts.max_length or PLAIN_PROMPT
    notes = [
        f"at most: every completion is counted with response_length {s.response_length}, and its sampling as one forward pass",
        f"what the reward '{stage.reward.name}' costs is not counted",
    ]
    bodies = 1
    if stage.value != "shared":
        notes.append("the value function's own body is counted as a second model in the operations, not in the memory")
        bodies = 2
    if s.ptx_coef:
        notes.append("the pretraining text of datasets is counted as one more pass of each epoch")
    learnt = s.num_ppo_epochs * (bodies + bool(s.ptx_coef))
    length = prompt if head.kind == "seq2seq_lm" else prompt + s.response_length
    rows = prompt_rows(stage.prompts)
    return Asked(
        head, rows, 1, FORWARDS + bodies - 1 + PASSES * (learnt - 1), length, target=s.response_length,
        copies=not stage.tuner.leaves_base, notes=tuple(notes),
    )  # fmt: skip
