"""What an evaluate stage leaves behind: scores, intervals, baselines, predictions and warnings. Main process only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipelines.evaluation.answers import Answers
from pipelines.evaluation.atomic import write_json
from pipelines.evaluation.baselines import score_baselines
from pipelines.evaluation.choice import Choice
from pipelines.evaluation.doubts import (
    constant_prediction,
    constant_text,
    no_better_than_majority,
    no_better_than_ngrams,
    trained_on,
)
from pipelines.evaluation.intervals import corpus_intervals, intervals
from pipelines.evaluation.predictions import Predicted, Written, write_predictions
from pipelines.protocols import Context, Task
from pipelines.registry import METRICS

if TYPE_CHECKING:
    from pipelines.evaluation.language_modeling import Measured


class Report:
    """Collects benchmark by benchmark, then writes everything at once."""

    def __init__(self, context: Context, baselines: Sequence[str]) -> None:
        self.context = context
        self.baselines = baselines
        self.metrics: dict[str, dict[str, float]] = {}
        self.details: dict[str, dict[str, Any]] = {}
        self.predicted: list[Predicted | Written] = []
        self.measured = 0

    def add(self, choice: Choice, task: Task, answers: Answers, started: float) -> None:
        """Score what the model said about each split of one benchmark. `started` is when its prediction began."""
        predicted = answers.predicted
        labelled = [(each, each.labels) for each in predicted if each.labels is not None]
        scores: dict[str, float] = {}
        ranges: dict[str, tuple[float, float]] = {}
        if labelled:
            score = self.context.score(task)
            for each, labels in labelled:
                given = score(each.said, labels)
                around = self._around(task, each, labels)
                scores |= {f"{name}{each.suffix}": value for name, value in given.items()}
                ranges |= {f"{name}{each.suffix}": value for name, value in around.items()}
            self.metrics[choice.name] = scores
        guessed, skipped = self._guess(choice, task, [each for each, _ in labelled])
        self.predicted += predicted
        self.details[choice.name] = {
            "model": choice.model,
            "examples": {each.split: len(each.rows) for each in predicted},
            "splits": {each.suffix: each.split for each in predicted},
            "max_length": answers.max_length,
            "columns": answers.columns,
            "precision": "no",
            "intervals": ranges,
            "baselines": guessed,
            **({"generation": answers.generation, "signatures": _signatures(task)} if answers.generation else {}),
            **({"skipped": skipped} if skipped else {}),
            "seconds": round(time.monotonic() - started, 3),
        }
        self._warn(choice.name, task, predicted, scores, ranges, guessed.get("majority", {}))

    def add_text(
        self, name: str, reference: Any, chosen: Any, found: Measured, stride: int | None, started: float
    ) -> None:
        """Keep what was measured about one held-out text with the model of the pretrain stage `chosen`."""
        self.metrics[name] = found.metrics
        self.details[name] = {
            "model": chosen.id,
            "examples": {reference.split: found.documents},
            "splits": {"": reference.split},
            "objective": chosen.objective.name,
            "block_size": chosen.block_size,
            **({"stride": stride} if stride else {}),
            "precision": "no",
            "intervals": found.intervals,
            "baselines": found.peers,
            "seconds": round(time.monotonic() - started, 3),
        }
        self.measured += found.documents
        doubts = [trained_on(name, reference, chosen), no_better_than_ngrams(name, found.metrics, found.intervals, found.peers)]
        for doubt in doubts:
            if doubt is not None:
                self.context.events.emit("warning", message=doubt)

    def _around(self, task: Task, said: Predicted | Written, references: Any) -> dict[str, tuple[float, float]]:
        if isinstance(said, Written):
            return corpus_intervals(task.metrics, said.said, references, self.context.seed)
        return intervals(self.context.score(task), said.logits, references, self.context.seed)

    def _guess(
        self, choice: Choice, task: Task, labelled: Sequence[Predicted | Written]
    ) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
        """The baselines, fitted on the rows that the model was fine-tuned on."""
        if not labelled or not self.baselines:
            return {}, {name: "the benchmark has no public labels" for name in self.baselines if not labelled}
        train = task.rows("train", getattr(choice.owner, "max_train_samples", None))
        splits = {each.suffix: each.rows for each in labelled}
        return score_baselines(self.baselines, self.context.score(task), len(task.head.labels) or 1, train, splits)

    def _warn(
        self,
        name: str,
        task: Task,
        predicted: Sequence[Predicted | Written],
        scores: dict[str, float],
        ranges: dict[str, tuple[float, float]],
        majority: dict[str, float],
    ) -> None:
        hidden = [each.split for each in predicted if each.labels is None]
        doubts = [
            constant_text(name, each.split, each.said) if isinstance(each, Written)
            else constant_prediction(name, each.split, each.logits, task.head.labels)
            for each in predicted
        ]  # fmt: skip
        doubts.append(no_better_than_majority(name, scores, ranges, majority))
        if hidden:
            doubts.append(
                f"{name}: the labels of '{', '.join(hidden)}' are not public: predictions are written, without a score"
            )
        for doubt in doubts:
            if doubt is not None:
                self.context.events.emit("warning", message=doubt)

    def write(self) -> None:
        """Predictions first, `metrics.json` last: whoever finds the scores finds everything they stand on."""
        folder = self.context.folder
        folder.mkdir(parents=True, exist_ok=True)
        write_predictions(folder / "predictions.parquet", self.predicted)
        write_json(folder / "details.json", self.details)
        write_json(folder / "metrics.json", self.metrics)
        flat = {f"{name}.{metric}": value for name, scores in self.metrics.items() for metric, value in scores.items()}
        self.context.events.emit("metric", step=sum(len(each.rows) for each in self.predicted) + self.measured, metrics=flat)


def _signatures(task: Task) -> dict[str, str]:
    """How each metric of texts was computed, as publications state it."""
    return {metric: import_module(METRICS.module(metric)).signature() for metric in task.metrics}
