"""Fine-tuning methods of the OpenAI surface, and the trainer behind each: one table."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.registry import STAGES
from service.openai.training_files import Shape


@dataclass(frozen=True)
class Method:
    """What a method needs."""

    stage: str
    """The stage of the STAGES registry that does it."""
    shape: Shape
    """What its rows look like."""
    lacks: str = ""
    """What is still missing on this surface although the trainer may exist."""


METHODS: dict[str, Method] = {
    "supervised": Method("supervised", "chat"),
    "dpo": Method("dpo", "preference", "preference files of this form have no counterpart in recipes yet"),
    "reinforcement": Method("grpo", "prompt", "graders have no counterpart in recipes yet"),
}
"""OpenAI's `method.type` -> the stage that does it."""


def refusal(method: str) -> str | None:
    """Why a method cannot be used here, or None when it can."""
    if method not in METHODS:
        return f"there is no method '{method}'; methods: {', '.join(METHODS)}"
    stage = METHODS[method].stage
    if stage not in STAGES:
        return f"the method '{method}' needs the trainer '{stage}', which this version of Finery does not have; use {', '.join(available())}"
    if METHODS[method].lacks:
        return f"the method '{method}' is not offered on this surface: {METHODS[method].lacks}; submit a recipe to /api/v1/jobs instead"
    return None


def available() -> list[str]:
    """The methods that can be used."""
    return [name for name, method in METHODS.items() if method.stage in STAGES and not method.lacks]
