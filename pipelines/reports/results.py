"""What runs leave in their folders: scores with what stands behind them, costs, curves, warnings.

What complete runs left behind: scores with what they were scored on, and what the training of each model cost.

What a run left behind, read from its folder: scores with what stands behind them, curves, costs, warnings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.events import read_events
from pipelines.core.recipe import Recipe
from pipelines.core.scores import better, is_score, smaller_is_better
from pipelines.evaluation.policy_completions import of_each_prompt
from pipelines.evaluation.resampling import Floats, Rescored, resamples, rescored
from pipelines.reports import run_plots
from pipelines.tasks.evaluation import BenchmarkChoice
from pipelines.tasks.predictions import read_predictions

COSTS = (
    "trainable_parameters",
    "all_parameters",
    "peak_memory_bytes",
    "train_runtime",
    "train_samples_per_second",
    "train_steps",
    "train_loss",
)
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
    choice: BenchmarkChoice | None = None
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
        return {
            suffix: found[self.benchmark, split]
            for suffix, split in self.splits.items()
            if (self.benchmark, split) in found
        }

    def same_examples(self, other: Result) -> bool:
        """Whether both were scored on the same examples."""
        one, two = self._read, other._read
        return (
            bool(one)
            and one.keys() == two.keys()
            and all(_identity(one[suffix]) == _identity(two[suffix]) for suffix in one)
        )

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
    places = {
        stage.id: folder / "stages" / f"{number:02d}-{stage.id}" for number, stage in enumerate(recipe.stages, start=1)
    }
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
                    benchmark,
                    stage.id,
                    model,
                    metrics,
                    {name: (float(pair[0]), float(pair[1])) for name, pair in detail.get("intervals", {}).items()},
                    _costs(places, model),
                    sum(detail.get("examples", {}).values()),
                    choices.get(benchmark),
                    place / "predictions.parquet" if benchmark in choices or "policy" in detail else None,
                    detail.get("splits", {}),
                    "policy" in detail,
                )
            )
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
    from pipelines.core.events import read_events

    points: dict[int, float] = {}
    for event in read_events(folder / "events.jsonl"):
        if (
            event.get("stage") == stage
            and event["event"] == "metric"
            and is_number(event.get("metrics", {}).get("loss"))
        ):
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


MOST_POINTS = 300
"""Of a learning curve."""
COSTS_RUN_RESULTS = (
    "train_steps",
    "train_runtime",
    "train_samples_per_second",
    "trainable_parameters",
    "all_parameters",
    "peak_memory_bytes",
)


@dataclass(frozen=True)
class Scored:
    """One benchmark of one evaluate stage."""

    benchmark: str
    stage: str
    metrics: dict[str, float]
    about: Mapping[str, Any]
    """Its part of `details.json`."""
    mistakes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def main(self) -> str:
        """The metric to compare by."""
        return next(iter(self.metrics))

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """By metric."""
        return {
            name: (float(pair[0]), float(pair[1]))
            for name, pair in self.about.get("intervals", {}).items()
            if len(pair) == 2
        }

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """By guesser."""
        found: dict[str, dict[str, float]] = self.about.get("baselines") or {}
        return found

    def sentence(self) -> str:
        """Whether the model beats the strongest guesser; empty without guessers."""
        rivals = {
            name: values[self.main]
            for name, values in self.baselines.items()
            if isinstance(values.get(self.main), int | float)
        }
        if not rivals:
            return ""
        smaller = smaller_is_better(self.main)
        rival = (min if smaller else max)(rivals, key=lambda name: rivals[name])
        reached, bar, called = self.metrics[self.main], rivals[rival], rival.replace("_", " ")
        numbers = f"{self.main} {reached:.3f} against {bar:.3f}"
        if not better(self.main, reached, bar):
            return f"Not better than {called}: {numbers}."
        around = self.intervals.get(self.main)
        if around is not None and around[0] <= bar <= around[1]:
            return f"Ahead of {called}, but within the 95 % interval: {numbers}."
        return f"Better than {called}: {numbers}."


@dataclass(frozen=True)
class Stage:
    """What one stage cost."""

    id: str
    kind: str
    seconds: float | None
    reused: bool
    costs: Mapping[str, float]
    curve: list[tuple[int, float]]
    held_out: dict[str, list[tuple[int, float]]]
    """Scores on the rows set aside while training, by name."""
    signals: Mapping[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Of a ppo stage its reward, KL and other signs by iteration."""
    samples: Sequence[Mapping[str, Any]] = ()
    """Of a ppo stage what the policy wrote at first and at last."""


@dataclass(frozen=True)
class RunResults:
    """Everything that the report of a run shows."""

    name: str
    scores: list[Scored]
    stages: list[Stage]
    warnings: list[str]
    manifest: Mapping[str, Any]
    recipe: str
    """As YAML."""
    published: list[str]
    failure: str = ""
    judged: list[dict[str, Any]] = field(default_factory=list)
    """Of each feedback stage its id, the `page` with examples, and its `details.json`."""


def run_results(folder: Path, recipe: Recipe) -> RunResults:
    """Read a run folder, complete or not."""
    manifest = read_json(folder / "manifest.json")
    spent = {each["id"]: each for each in manifest.get("stages", [])}
    scores: list[Scored] = []
    stages: list[Stage] = []
    published: list[str] = []
    judged: list[dict[str, Any]] = []
    for number, stage in enumerate(recipe.stages, start=1):
        place = folder / "stages" / f"{number:02d}-{stage.id}"
        metrics = read_json(place / "metrics.json")
        if stage.stage == "evaluate":
            scores += _scores(place, stage.id, metrics)
        if stage.stage == "feedback" and (details := read_json(place / "details.json")):
            judged.append({"stage": stage.id, "page": f"stages/{place.name}/audit.html", "details": details})
        if location := read_json(place / "publication.json").get("location"):
            published.append(str(location))
        about = spent.get(stage.id, {})
        costs = (
            {name: float(metrics[name]) for name in COSTS_RUN_RESULTS if is_number(metrics.get(name))}
            if stage.trains
            else {}
        )
        curve = _thinned(curve_of(folder, stage.id)) if stage.trains else []
        held_out = _held_out(folder, stage.id) if stage.trains else {}
        sampled = (
            (run_plots.signals(folder, stage.id), run_plots.samples(folder, stage.id))
            if stage.stage == "ppo"
            else ({}, [])
        )
        stages.append(
            Stage(
                stage.id, stage.stage, about.get("seconds"), bool(about.get("reused")), costs, curve, held_out, *sampled
            )
        )
    warnings, failure = _said(folder, manifest.get("started"))
    return RunResults(recipe.name, scores, stages, warnings, manifest, recipe.to_yaml(), published, failure, judged)


def _scores(place: Path, stage: str, metrics: Mapping[str, Any]) -> list[Scored]:
    details = read_json(place / "details.json")
    mistakes = _lines(place / "mistakes.jsonl")
    found = []
    for benchmark, values in metrics.items():
        own = (
            {name: float(value) for name, value in values.items() if is_score(name) and is_number(value)}
            if isinstance(values, dict)
            else {}
        )
        if own:
            found.append(
                Scored(
                    benchmark,
                    stage,
                    own,
                    details.get(benchmark, {}),
                    [each for each in mistakes if each.get("benchmark") == benchmark],
                )
            )
    return found


def _held_out(folder: Path, stage: str) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, dict[int, float]] = {}
    for event in read_events(folder / "events.jsonl"):
        if event.get("stage") == stage and event["event"] == "metric" and isinstance(event.get("step"), int):
            for name, value in (event.get("metrics") or {}).items():
                if name.startswith("eval_") and is_number(value) and not name.endswith(("_runtime", "_per_second")):
                    found.setdefault(name.removeprefix("eval_"), {})[event["step"]] = float(value)
    return {name: sorted(points.items()) for name, points in found.items() if len(points) > 1}


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    every = max(1, -(-len(points) // MOST_POINTS))
    return points[::every] if len(points) % every == 1 or every == 1 else [*points[::every], points[-1]]


def _said(folder: Path, since: Any) -> tuple[list[str], str]:
    """(warnings, why it failed) of the newest attempt; a reused stage's warnings are those of its first one."""
    warnings: dict[str, None] = {}
    failure = ""
    for event in read_events(folder / "events.jsonl"):
        if event["event"] == "warning" and event.get("message"):
            warnings[str(event["message"])] = None
        if event["event"] in ("failed", "stopped") and str(event.get("time", "")) >= str(since or ""):
            failure = str(event.get("message", ""))
        if event["event"] == "finished":
            failure = ""
    return list(warnings), failure


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []
