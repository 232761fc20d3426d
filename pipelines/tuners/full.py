"""Full fine-tuning: every weight learns (Howard and Ruder 2018, arxiv.org/abs/1801.06146, is the usual reference)."""

from __future__ import annotations

from typing import Any, Literal

from pipelines.tuners.tuner import TunerBlock


class Full(TunerBlock):
    """Train every weight."""

    name: Literal["full"] = "full"

    def apply(self, model: Any) -> Any:
        """The same model, with every weight trainable."""
        model.requires_grad_(True)
        return model
