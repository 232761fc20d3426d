"""What an evaluate stage leaves behind: scores, intervals, baselines, predictions and warnings. Main process only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pipelines.evaluation.answers import Answers
from pipelines.evaluation.atomic import write_json
from pipelines.evaluation.baselines import score_baselines
from pipelines.evaluation.choice import Choice
from pipelines.evaluation.doubts import constant_prediction, no_better_than_majority
from pipelines.evaluation.intervals import intervals
from pipelines.evaluation.predictions import Predicted, write_predictions
from pipelines.protocols import Context, Task


class Report:
    """Collects benchmark by benchmark, then writes everything at once."""

    def __init__(self, context: Context, baselines: Sequence[str]) -> None:
        self.context = context
        self.baselines = baselines
        self.metrics: dict[str, dict[str, float]] = {}
        self.details: dict[str, dict[str, Any]] = {}
        self.predicted: list[Predicted] = []

    def add(self, choice: Choice, task: Task, answers: Answers, started: float) -> None:
        """Score what the model said about each split of one benchmark. `started` is when its prediction began."""
        predicted = answers.predicted
        labelled = [(each, each.labels) for each in predicted if each.labels is not None]
        scores: dict[str, float] = {}
        ranges: dict[str, tuple[float, float]] = {}
        if labelled:
            score = self.context.score(task)
            for each, labels in labelled:
                given = score(each.logits, labels)
                around = intervals(score, each.logits, labels, self.context.seed)
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
            **({"skipped": skipped} if skipped else {}),
            "seconds": round(time.monotonic() - started, 3),
        }
        self._warn(choice.name, task, predicted, scores, ranges, guessed.get("majority", {}))

    def _guess(
        self, choice: Choice, task: Task, labelled: Sequence[Predicted]
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
        predicted: Sequence[Predicted],
        scores: dict[str, float],
        ranges: dict[str, tuple[float, float]],
        majority: dict[str, float],
    ) -> None:
        hidden = [each.split for each in predicted if each.labels is None]
        doubts = [constant_prediction(name, each.split, each.logits, task.head.labels) for each in predicted]
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
        self.context.events.emit("metric", step=sum(len(each.rows) for each in self.predicted), metrics=flat)
