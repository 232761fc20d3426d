"""What one model said about one benchmark, and how it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.evaluation.predictions import Predicted


@dataclass(frozen=True)
class Answers:
    """The answers to every evaluation split of a benchmark."""

    predicted: Sequence[Predicted]
    max_length: int
    """Tokens after which a text was cut."""
    columns: list[int] | None
    """The model's output behind each class of the task; None where both have the same order."""
