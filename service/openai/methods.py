"""Fine-tuning methods of the OpenAI surface, and the trainer behind each: one table."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.registry import STAGES
from service.openai.training_files import Shape


@dataclass(frozen=True)
class Method:
    """What a method needs."""

    stage: str
    """The stage of the STAGES registry that does it, which is also its id in the recipe."""
    shape: Shape
    """What its rows look like."""
    rate: float = 1.0
    """What the learning rates of supervised learning are multiplied by."""
    epochs: int = 3
    """What `n_epochs: auto` means."""
    from_scratch: bool = False
    """Whether a model that has learnt nothing yet can begin with it."""


METHODS: dict[str, Method] = {
    "supervised": Method("supervised", "chat", from_scratch=True),
    "dpo": Method("dpo", "preference", rate=0.1, epochs=2),
    "reinforcement": Method("ppo", "prompt", rate=0.1, epochs=1),
}
"""OpenAI's `method.type` -> the stage that does it."""
STAGE_IDS = frozenset(method.stage for method in METHODS.values())


def refusal(method: str) -> str | None:
    """Why a method cannot be used here, or None when it can."""
    if method not in METHODS:
        return f"there is no method '{method}'; methods: {', '.join(METHODS)}"
    stage = METHODS[method].stage
    if stage not in STAGES:
        return f"the method '{method}' needs the trainer '{stage}', which this version of Finery does not have; use {', '.join(available())}"
    return None


def available() -> list[str]:
    """The methods that can be used."""
    return [name for name, method in METHODS.items() if method.stage in STAGES]
