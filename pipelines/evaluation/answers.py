"""What one model said about one benchmark, and how it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.evaluation.predictions import Said


@dataclass(frozen=True)
class Answers:
    """The answers to every evaluation split of a benchmark."""

    predicted: Sequence[Said]
    max_length: int
    """Tokens after which a text was cut."""
    columns: list[int] | None = None
    """The model's output behind each class of the task; None where both have the same order."""
    generation: Mapping[str, Any] | None = None
    """How texts were written; None where the answers are no texts."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else it takes to ask the same again, and to read the scores rightly: it stands in `details.json`."""
