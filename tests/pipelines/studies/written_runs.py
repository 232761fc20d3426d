"""Studies for tests: runs that are written down instead of trained, with scores that a test can foretell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.core.events import EventLog
from pipelines.core.interfaces import Rows
from pipelines.core.load import loads
from pipelines.core.recipe import Recipe
from pipelines.core.results import BenchmarkScores
from pipelines.core.signals import StopSignal
from pipelines.evaluation.outcomes import outcomes_of_answers, write_outcomes
from pipelines.studies.workers import DeviceSlot, RunEnd, WaitingRun
from pipelines.tasks.predictions import ClassPredictions, write_predictions

EXAMPLES = 400
GUESSED = 0.6
"""Share of the examples that the baseline `naive_bayes` answers rightly, where the evaluate stage names it."""
RECIPE = """\
name: methods
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, id: mrpc, task: glue/mrpc, arguments: {num_train_epochs: 1}}
  - {stage: evaluate}
matrix:
  method:
    full: {stages.mrpc.tuner: full, search: {stages.mrpc.arguments.learning_rate: [2e-5, 5e-5, 1e-4]}}
    lora: {stages.mrpc.tuner: {name: lora, r: 4}}
  stages.mrpc.seed: [1, 2, 3]
study:
  reference: full
  search: {seeds: 1, over: {stages.mrpc.arguments.learning_rate: [1e-4, 1e-3, 1e-2]}}
"""


def right(share: float, seed: int) -> np.ndarray:
    """Which of the examples a model answers rightly (EXAMPLES,): that share of them, drawn by the seed."""
    order = np.random.default_rng(seed).permutation(EXAMPLES)
    found = np.zeros(EXAMPLES, dtype=bool)
    found[order[: round(share * EXAMPLES)]] = True
    return found


def finish(
    folder: Path,
    recipe: Recipe,
    answered: np.ndarray,
    learnt: int = 1000,
    selection: float | None = None,
    seconds: float = 2.0,
) -> None:
    """Leave behind what a run of `recipe` leaves: its first stage trained, its evaluate stage scored on MRPC."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(recipe.to_yaml())
    for number, stage in enumerate(recipe.stages, start=1):
        place = folder / "stages" / f"{number:02d}-{stage.id}"
        place.mkdir(parents=True, exist_ok=True)
        if stage.trains:
            metrics: dict[str, Any] = {
                "trainable_parameters": learnt,
                "all_parameters": 10_000,
                "peak_memory_bytes": 5e8,
                "train_runtime": seconds,
            }
            if selection is not None:
                metrics |= {"eval_loss": 1.0, "eval_accuracy": selection, "eval_f1": selection}
            (place / "metrics.json").write_text(json.dumps(metrics))
            (place / "model").mkdir(exist_ok=True)
            (place / "model" / "model.safetensors").write_bytes(b"x" * learnt * 4)
            events = EventLog(folder / "events.jsonl", stage.id)
            for step in (1, 2, 3):
                events.emit("metric", step=step, metrics={"loss": 1.0 / step})
        else:
            _score(place, recipe, answered)
    (folder / "manifest.json").write_text(json.dumps({"finished": "2026-11-21T10:00:00+00:00"}))


def _score(place: Path, recipe: Recipe, answered: np.ndarray) -> None:
    labels = np.arange(EXAMPLES) % 2
    said = np.where(answered, labels, 1 - labels)
    logits = np.eye(2, dtype=np.float32)[said]
    hits = (said == 1) & (labels == 1)
    f1 = 2 * hits.sum() / ((said == 1).sum() + (labels == 1).sum())
    rows = Rows(
        [f"one {at}" for at in range(EXAMPLES)],
        [f"two {at}" for at in range(EXAMPLES)],
        labels.tolist(),
        list(range(EXAMPLES)),
    )
    write_predictions(place / "predictions.parquet", [ClassPredictions("glue/mrpc", "validation", "", rows, logits)])
    (place / "metrics.json").write_text(
        json.dumps({"glue/mrpc": {"accuracy": float(answered.mean()), "f1": float(f1)}})
    )
    details = {
        "model": recipe.stages[0].id,
        "examples": {"validation": EXAMPLES},
        "splits": {"": "validation"},
        "intervals": {"accuracy": [0.0, 1.0]},
    }
    if "naive_bayes" in getattr(recipe.stages[-1], "baselines", ()):
        guessed = np.where(right(GUESSED, 0), labels, 1 - labels)
        reached = {"accuracy": GUESSED}
        columns = {"index": np.arange(EXAMPLES), "label": labels, "logits": np.eye(2)[guessed]}
        choice = recipe.stages[-1].choices(recipe)[0][0]
        scores = BenchmarkScores("glue/mrpc", "evaluate", "naive_bayes", reached, details=details)
        (place / "baselines").mkdir(exist_ok=True)
        write_outcomes(place / "baselines/naive_bayes.parquet", [outcomes_of_answers(scores, choice, {"": columns})])
        details["baselines"] = {"naive_bayes": reached}
    (place / "details.json").write_text(json.dumps({"glue/mrpc": details}))


@cache
def _recipe(text: str) -> Recipe:
    """Of the same text once: many tests do the same runs."""
    return loads(text)


class PretendWorkers:
    """Workers that write runs down. `outcome(recipe, name)` says what each leaves: `(share, selection)`, or how it ended."""

    def __init__(
        self, outcome: Callable[[Recipe, str], Any], stop: StopSignal | None = None, stop_after: int | None = None
    ) -> None:
        self.slots = [DeviceSlot()]
        self.stop = stop or StopSignal()
        self.outcome = outcome
        self.done: list[str] = []
        self.stop_after = stop_after

    def next(self, waiting: list[WaitingRun]) -> WaitingRun:
        return waiting[0]

    def do(self, waiting: list[WaitingRun], started: Any = None, warn: Any = None) -> Iterator[RunEnd]:
        while waiting and not self.stop.requested:
            run = self.next(waiting)
            waiting.remove(run)
            name, folder = run.name, run.folder
            started(name)
            recipe = _recipe((folder / "recipe.yaml").read_text())
            found = self.outcome(recipe, name)
            self.done.append(name)
            if self.stop_after is not None and len(self.done) >= self.stop_after:
                self.stop.requested = True
            if isinstance(found, RunEnd):
                yield RunEnd(name, found.code, found.seconds, found.message, found.reason)
                continue
            share, selection = found
            stage = recipe.stages[0]
            seed = recipe.seed_of(stage)
            learnt = 10_000 if stage.tuner.name == "full" else 100  # type: ignore[attr-defined]
            finish(folder, recipe, right(share, seed), learnt, selection)
            yield RunEnd(name, 0, 1.5)
