"""Gradual unfreezing: the last layer learns first, and one more with every epoch (Howard and Ruder 2018, section 3.3)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from pipelines.blocks import Block, Mistakes, show


class GradualUnfreezing(Block):
    """When each layer begins to learn. arxiv.org/abs/1801.06146, section 3.3."""

    epochs_per_layer: int = Field(1, ge=1)
    """Epochs until the next layer below joins."""

    def thawed(self, epoch: int) -> int:
        """How many layers learn in that epoch, the first being 0, counted from the head."""
        return 1 + epoch // self.epochs_per_layer


def _spelled(value: Any) -> Any:
    if isinstance(value, bool):
        return GradualUnfreezing() if value else None
    if value is None or isinstance(value, GradualUnfreezing):
        return value
    if isinstance(value, dict):
        return value
    raise Mistakes([((), f"is {show(value)}, must be true, or a mapping such as {{epochs_per_layer: 2}}")])


Gradual = Annotated[GradualUnfreezing | None, BeforeValidator(_spelled)]
"""The type of a key that takes `true` or the settings."""
