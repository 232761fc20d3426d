"""What a run leaves in its folder, and the one reader of it: scores beside baselines, costs of training, publications.

Each stage has a folder `stages/NN-ID`. An evaluate stage, or one of features, leaves `metrics.json` (by benchmark: its
figures) and `details.json` (by benchmark: the model, 95 % intervals, baselines, numbers of examples), a training stage
its costs in `metrics.json`, a publish stage `publication.json`. Run pages, study tables, model cards and the command
line read them here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from pipelines.core.files import JSONObject, read_json
from pipelines.core.scores import better, is_score, smaller_is_better

EVALUATIONS = ("evaluate", "features")
"""Kinds of stages that leave scores of benchmarks."""
COSTS = (
    "trainable_parameters", "all_parameters", "peak_memory_bytes", "train_runtime", "train_samples_per_second",
    "train_tokens_per_second", "train_utilisation", "train_steps", "train_loss",
)  # fmt: skip
"""What a training stage's `metrics.json` says of its costs."""

MARKER = "publication.json"
"""What a publication is complete with. Written last, and therefore in no list of its checksums."""

Standing = Literal["behind", "ahead", "within the interval", "better"]
"""How a score stands to its strongest baseline: `ahead` where no interval is known, `better` where the interval
excludes the baseline."""


@dataclass
class BenchmarkScores:
    """What one model scored on one benchmark, as one evaluate stage measured it."""

    benchmark: str
    stage: str
    """The evaluate stage."""
    model: str
    """Id of the stage that trained the model, or `model`."""
    metrics: dict[str, float]
    """The first is the one to compare by. NaN where a score is undefined."""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """95 % intervals over the examples, by metric."""
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    """The metrics of each baseline."""
    details: JSONObject = field(default_factory=dict)
    """The benchmark's part of `details.json`."""
    folder: Path | None = None
    """The evaluate stage's folder, where `predictions.parquet` lies."""

    @property
    def main(self) -> str:
        """Name of the metric to compare by."""
        return next(iter(self.metrics))

    @property
    def splits(self) -> Mapping[str, str]:
        """Suffix of the metrics' names -> split."""
        return _mapping(self.details.get("splits"))

    def defined(self) -> Self | None:
        """The same without undefined scores; None where none is left."""
        metrics = {name: value for name, value in self.metrics.items() if math.isfinite(value)}
        return replace(self, metrics=metrics) if metrics else None

    def strongest_baseline(self) -> tuple[str, float] | None:
        """Name and main score of the best baseline; None without one."""
        return strongest(self.main, self.baselines)

    def standing(self, bar: float) -> Standing:
        """How the main score stands to the score `bar` of a baseline."""
        if not better(self.main, self.metrics[self.main], bar):
            return "behind"
        interval = self.intervals.get(self.main)
        if interval is None:
            return "ahead"
        return "within the interval" if interval[0] <= bar <= interval[1] else "better"


def strongest(metric: str, candidates: Mapping[str, Mapping[str, float]]) -> tuple[str, float] | None:
    """Name and score of the candidate with the best `metric`, the first of equal ones; None where none has it."""
    scores = {name: each[metric] for name, each in candidates.items() if not math.isnan(each.get(metric, math.nan))}
    if not scores:
        return None
    name = (min if smaller_is_better(metric) else max)(scores, key=lambda each: scores[each])
    return name, scores[name]


def scores_in(
    metrics: JSONObject, details: JSONObject, stage: str, folder: Path | None = None
) -> list[BenchmarkScores]:
    """The scores of one evaluate stage, by the contents of its `metrics.json` and `details.json`."""
    scores = []
    for benchmark, figures in metrics.items():
        reached = {name: value for name, value in numbers(figures).items() if is_score(name)}
        if not reached:
            continue
        about = _mapping(details.get(benchmark))
        baselines = {name: own for name, each in _mapping(about.get("baselines")).items() if (own := numbers(each))}
        model = str(about.get("model") or stage)
        scores.append(
            BenchmarkScores(
                benchmark, stage, model, reached, _intervals(about.get("intervals")), baselines, about, folder
            )
        )
    return scores


def read_scores(folder: Path, stage: str) -> list[BenchmarkScores]:
    """The scores that the evaluate stage `stage` left in its folder; none where it is not complete."""
    return scores_in(read_json(folder / "metrics.json"), read_json(folder / "details.json"), stage, folder)


def scores_of_model(model: str, stages: Iterable[str], folders: Mapping[str, Path]) -> dict[str, BenchmarkScores]:
    """By benchmark: the scores of the model that stage `model` trained. A later evaluate stage replaces an earlier
    one."""
    return {
        each.benchmark: each
        for stage in stages
        for each in read_scores(folders[stage], stage)
        if each.details.get("model") == model
    }


def training_costs(folder: Path) -> dict[str, float]:
    """The costs that a training stage left in its folder."""
    metrics = read_json(folder / "metrics.json")
    return {name: float(metrics[name]) for name in COSTS if is_number(metrics.get(name))}


def published_at(folder: Path) -> str | None:
    """Where a publish stage put its checkpoint."""
    location = read_json(folder / MARKER).get("location")
    return None if location is None else str(location)


def stage_folder(run: Path, number: int, stage: str) -> Path:
    """The folder of a run's stage; the first stage is number 1."""
    return run / "stages" / f"{number:02d}-{stage}"


def stage_folders(run: Path, stages: Sequence[str]) -> dict[str, Path]:
    """The folder of each of a recipe's stages, given by their ids in order."""
    return {stage: stage_folder(run, number, stage) for number, stage in enumerate(stages, start=1)}


def folder_named(run: Path, stage: str) -> Path | None:
    """The folder that a run has for the stage with this id, whatever its number; None where it has none."""
    return next((path for path in (run / "stages").glob("*-*") if path.name.partition("-")[2] == stage), None)


def is_number(value: object) -> bool:
    """Whether a value is a finite number and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def numbers(values: object) -> dict[str, float]:
    """The entries of a mapping that are numbers; `"nan"`, as JSON files carry it, included."""
    figures = {}
    for name, value in _mapping(values).items():
        try:
            if not isinstance(value, bool):
                figures[name] = float(value)
        except (TypeError, ValueError):
            continue
    return figures


def _intervals(values: object) -> dict[str, tuple[float, float]]:
    intervals = {}
    for name, ends in _mapping(values).items():
        try:
            low, high = (float(end) for end in ends)
        except (TypeError, ValueError):
            continue
        if math.isfinite(low) and math.isfinite(high):
            intervals[name] = (low, high)
    return intervals


def _mapping(value: object) -> JSONObject:
    return value if isinstance(value, Mapping) else {}
