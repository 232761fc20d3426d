"""The slanted triangular schedule: a short rise and a long fall (Howard and Ruder 2018, section 3.2, equation 3)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from pipelines.blocks import Block, Mistakes, show


class SlantedTriangular(Block):
    """A short rise and a long fall of the learning rates. arxiv.org/abs/1801.06146, equation 3."""

    cut_frac: float = Field(0.1, gt=0, lt=1)
    """The share of the steps in which the rates rise."""
    ratio: float = Field(32.0, gt=1)
    """How much smaller the smallest rate is than the largest."""

    def factor(self, step: int, steps: int) -> float:
        """What the rates are multiplied by in the update after `step` others, of `steps` in all: between 1 / ratio and 1.

        The fall takes `steps - cut` steps, which is the paper's `cut · (1 / cut_frac - 1)` where `cut_frac · steps` is
        whole; elsewhere the paper's would end early and go below zero.
        """
        cut = max(1, int(steps * self.cut_frac))
        height = step / cut if step < cut else 1 - (step - cut) / max(1, steps - cut)
        return (1 + max(height, 0.0) * (self.ratio - 1)) / self.ratio


def _spelled(value: Any) -> Any:
    if isinstance(value, bool):
        return SlantedTriangular() if value else None
    if value is None or isinstance(value, SlantedTriangular | dict):
        return value
    raise Mistakes([((), f"is {show(value)}, must be true, or a mapping such as {{cut_frac: 0.1, ratio: 32}}")])


Slanted = Annotated[SlantedTriangular | None, BeforeValidator(_spelled)]
"""The type of a key that takes `true` or the settings."""
