"""What a run's page says about a reward model: how its scores lie, and what it gains over guessers by length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines import plots_scores


def of(about: Mapping[str, Any], split: str) -> dict[str, str] | None:
    """The picture of one split and the sentence below it; None where no answers were scored."""
    histogram = about.get("histogram", {}).get(split)
    if not histogram:
        return None
    gains = [
        f"{each['difference']:+.3f} over {name.replace('_', ' ')} (95 % {each['interval'][0]:+.3f} to {each['interval'][1]:+.3f})"
        for name, each in about.get("paired", {}).get(split, {}).items()
    ]
    told = f" Accuracy, pair by pair: {'; '.join(gains)}." if gains else ""
    return {"plot": plots_scores.scores(histogram, "scores of chosen and of rejected answers"), "told": f"Blue: chosen answers; orange: rejected ones.{told}"}
