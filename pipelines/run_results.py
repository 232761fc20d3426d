"""What a run left behind, read from its folder: scores with what stands behind them, curves, costs, warnings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines import plots_ppo
from pipelines.events import read_events
from pipelines.fields.scores import better, is_score, smaller_is_better
from pipelines.recipe import Recipe
from pipelines.study_results import curve_of, is_number, read_json

MOST_POINTS = 300
"""Of a learning curve."""
COSTS = ("train_steps", "train_runtime", "train_samples_per_second", "trainable_parameters", "all_parameters", "peak_memory_bytes")


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
        return {name: (float(pair[0]), float(pair[1])) for name, pair in self.about.get("intervals", {}).items() if len(pair) == 2}

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """By guesser."""
        found: dict[str, dict[str, float]] = self.about.get("baselines") or {}
        return found

    def sentence(self) -> str:
        """Whether the model beats the strongest guesser; empty without guessers."""
        rivals = {name: values[self.main] for name, values in self.baselines.items() if isinstance(values.get(self.main), int | float)}
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
        costs = {name: float(metrics[name]) for name in COSTS if is_number(metrics.get(name))} if stage.trains else {}
        curve = _thinned(curve_of(folder, stage.id)) if stage.trains else []
        held_out = _held_out(folder, stage.id) if stage.trains else {}
        sampled = (plots_ppo.signals(folder, stage.id), plots_ppo.samples(folder, stage.id)) if stage.stage == "ppo" else ({}, [])
        stages.append(Stage(stage.id, stage.stage, about.get("seconds"), bool(about.get("reused")), costs, curve, held_out, *sampled))
    warnings, failure = _said(folder, manifest.get("started"))
    return RunResults(recipe.name, scores, stages, warnings, manifest, recipe.to_yaml(), published, failure, judged)


def _scores(place: Path, stage: str, metrics: Mapping[str, Any]) -> list[Scored]:
    details = read_json(place / "details.json")
    mistakes = _lines(place / "mistakes.jsonl")
    found = []
    for benchmark, values in metrics.items():
        own = {name: float(value) for name, value in values.items() if is_score(name) and is_number(value)} if isinstance(values, dict) else {}
        if own:
            found.append(Scored(benchmark, stage, own, details.get(benchmark, {}), [each for each in mistakes if each.get("benchmark") == benchmark]))
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
