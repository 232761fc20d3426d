"""What earlier evaluate stages found out about the one model that is to be published."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Scored:
    """The scores of one model, by benchmark."""

    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Intervals, numbers of examples, baselines, `max_length`."""
    folders: dict[str, Path] = field(default_factory=dict)
    """The evaluate stage's folder, where `predictions.parquet` lies."""


def scores_of(model: str, stages: Iterable[str], folders: Mapping[str, Path]) -> Scored:
    """The scores of the model that stage `model` trained. A later evaluate stage replaces an earlier one's scores."""
    found = Scored()
    for stage in stages:
        folder = folders[stage]
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        details = json.loads((folder / "details.json").read_text(encoding="utf-8"))
        for benchmark, values in metrics.items():
            about = details.get(benchmark, {})
            if about.get("model") == model:
                found.metrics[benchmark] = values
                found.details[benchmark] = about
                found.folders[benchmark] = folder
    return found
