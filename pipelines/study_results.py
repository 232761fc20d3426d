"""What complete runs left behind: scores with what they were scored on, and what the training of each model cost."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.evaluation.choice import Choice
from pipelines.evaluation.policy_said import of_each_prompt
from pipelines.evaluation.predictions import read_predictions
from pipelines.fields.scores import is_score
from pipelines.recipe import Recipe
from pipelines.rescoring import Rescored, rescored
from pipelines.study_statistics import Floats, resamples

COSTS = ("trainable_parameters", "all_parameters", "peak_memory_bytes", "train_runtime", "train_samples_per_second", "train_steps", "train_loss")
"""What a training stage's `metrics.json` tells of its costs."""
SEED = 42
"""Of the resampled examples: the same for every run, so that all of them are paired."""


@dataclass
class Result:
    """What one model reached on one benchmark."""

    benchmark: str
    stage: str
    """The evaluate stage."""
    model: str
    """Id of the stage that trained the model, or `model`."""
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of this run alone, over its examples."""
    costs: dict[str, float] = field(default_factory=dict)
    """Of the stage that trained the model, with `saved_bytes`: the weights that it left on the disk."""
    examples: int = 0
    choice: Choice | None = None
    predictions: Path | None = None
    splits: Mapping[str, str] = field(default_factory=dict)
    """Suffix of the metrics' names -> split."""
    completed: bool = False
    """Whether the scores are means over the completions of prompts."""

    @property
    def main(self) -> str:
        """The metric to compare by: the first."""
        return next(iter(self.metrics))

    @cached_property
    def _read(self) -> dict[str, Any]:
        """By suffix: what was predicted about the split."""
        if self.predictions is None or not self.predictions.is_file():
            return {}
        found = read_predictions(self.predictions)
        return {suffix: found[self.benchmark, split] for suffix, split in self.splits.items() if (self.benchmark, split) in found}

    def same_examples(self, other: Result) -> bool:
        """Whether both were scored on the same examples."""
        one, two = self._read, other._read
        return bool(one) and one.keys() == two.keys() and all(_identity(one[suffix]) == _identity(two[suffix]) for suffix in one)

    @cached_property
    def parts(self) -> dict[str, Rescored]:
        """By suffix: the split's answers, ready to be scored again. Only of splits where that gives the same scores."""
        found: dict[str, Rescored] = {}
        if self.choice is None:
            return found
        for suffix, part in self._read.items():
            own = {name.removesuffix(suffix): value for name, value in self.metrics.items() if name.endswith(suffix)}
            try:
                again = rescored(self.choice.open_task(), part, own)
            except Exception:  # a kind of prediction that is not one answer an example: there is no interval then
                continue
            if again is not None:
                found[suffix] = again
        return found

    @cached_property
    def draws(self) -> dict[str, Floats]:
        """By metric: the score on resampled examples (resamples,). Empty where predictions cannot be scored again."""
        found: dict[str, Floats] = {}
        if self.completed and self.predictions is not None and self.predictions.is_file():
            columns = of_each_prompt(self.predictions, self.metrics)
            return {name: column[resamples(len(column), SEED)].mean(axis=1) for name, column in columns.items()}
        for suffix, part in self.parts.items():
            drawn = part.resampled(resamples(len(part), SEED))
            found |= {f"{name}{suffix}": values for name, values in drawn.items() if f"{name}{suffix}" in self.metrics}
        return found


def _identity(part: Mapping[str, Any]) -> tuple[bytes, Any]:
    """Row numbers and labels: what makes examples the same."""
    labels = part.get("label", part.get("reference"))
    index: NDArray[Any] = np.asarray(part["index"])
    return index.tobytes(), labels.tobytes() if isinstance(labels, np.ndarray) else labels


def results_of(folder: Path, recipe: Recipe) -> list[Result]:
    """Everything that the evaluate stages of a finished run measured, in their order."""
    places = {stage.id: folder / "stages" / f"{number:02d}-{stage.id}" for number, stage in enumerate(recipe.stages, start=1)}
    found: list[Result] = []
    for stage in recipe.stages:
        if stage.stage != "evaluate":
            continue
        place = places[stage.id]
        details = read_json(place / "details.json")
        choices = {choice.name: choice for choice in stage.choices(recipe)[0]}
        for benchmark, told in read_json(place / "metrics.json").items():
            metrics = {name: float(value) for name, value in told.items() if is_score(name) and is_number(value)}
            if not metrics:
                continue
            detail = details.get(benchmark, {})
            model = str(detail.get("model", ""))
            found.append(
                Result(
                    benchmark, stage.id, model, metrics,
                    {name: (float(pair[0]), float(pair[1])) for name, pair in detail.get("intervals", {}).items()},
                    _costs(places, model), sum(detail.get("examples", {}).values()),
                    choices.get(benchmark), place / "predictions.parquet" if benchmark in choices or "policy" in detail else None,
                    detail.get("splits", {}), "policy" in detail,
                )
            )  # fmt: skip
    return found


def _costs(places: Mapping[str, Path], model: str) -> dict[str, float]:
    """What it cost to train a model: of one task of several, what all of them cost."""
    stage, _, task = model.partition("/")
    if stage not in places:
        return {}
    place = places[stage]
    told = read_json(place / "metrics.json")
    place = place / "tasks" / task if task else place
    found = {name: float(told[name]) for name in COSTS if is_number(told.get(name))}
    weights = [path.stat().st_size for path in (place / "model").glob("*.safetensors")]
    return found | ({"saved_bytes": float(sum(weights))} if weights else {})


def curve_of(folder: Path, stage: str) -> list[tuple[int, float]]:
    """(step, training loss) as the run's events tell it; of a stage that was done twice, the last time."""
    from pipelines.events import read_events

    points: dict[int, float] = {}
    for event in read_events(folder / "events.jsonl"):
        if event.get("stage") == stage and event["event"] == "metric" and is_number(event.get("metrics", {}).get("loss")):
            points[int(event["step"])] = float(event["metrics"]["loss"])
    return sorted(points.items())


def read_json(path: Path) -> dict[str, Any]:
    """The mapping that a file holds; empty where there is none, or something else in it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
