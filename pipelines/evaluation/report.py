"""What an evaluate stage leaves behind: scores, intervals, baselines, predictions and warnings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import DataError
from pipelines.core.files import write_json
from pipelines.core.interfaces import Context, Task
from pipelines.core.registry import METRICS
from pipelines.core.scores import OF_A_HUNDRED, score_names
from pipelines.evaluation.analysis import analysed, columns_of, look_for_overlap
from pipelines.evaluation.baselines import score_baselines
from pipelines.evaluation.benchmark_selection import Choice
from pipelines.evaluation.examples import write_mistakes
from pipelines.evaluation.official.glue import KEY as GLUE
from pipelines.evaluation.official.glue import glue_score
from pipelines.tasks import scoring
from pipelines.tasks.evaluation import Predictions
from pipelines.tasks.predictions import (
    SplitPredictions,
    no_better_than_majority,
    no_better_than_ngrams,
    trained_on,
    write_predictions,
)

if TYPE_CHECKING:
    from pipelines.evaluation.language_modeling import Measured


class Report:
    """Collects benchmark by benchmark, then writes everything at once."""

    def __init__(self, context: Context, baselines: Sequence[str], slices: Sequence[str] = ()) -> None:
        self.context = context
        self.baselines = baselines
        self.slices = slices
        self.mistakes: list[dict[str, Any]] = []
        self.metrics: dict[str, dict[str, float]] = {}
        self.details: dict[str, dict[str, Any]] = {}
        self.predicted: list[SplitPredictions] = []
        self.measured = 0

    def add(self, choice: Choice, task: Task, answers: Predictions, started: float) -> None:
        """Score what the model said about each split of one benchmark. `started` is when its prediction began."""
        predicted = answers.predicted
        labelled = [(each, each.labels) for each in predicted if each.labels is not None]
        scores: dict[str, float] = {}
        ranges: dict[str, tuple[float, float]] = {}
        if labelled:
            score = scoring.score(task)
            for each, labels in labelled:
                given = score(each.said, labels)
                around = each.around(task, score, self.context.seed)
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
            **(
                {"percent": percent}
                if (percent := score_names(name for name in task.metrics if name in OF_A_HUNDRED))
                else {}
            ),
            **answers.details,
            **({"generation": answers.generation, "signatures": _signatures(task)} if answers.generation else {}),
            **({"skipped": skipped} if skipped else {}),
            "seconds": round(time.monotonic() - started, 3),
        }
        self._analyse(choice, task, predicted)
        self._warn(
            choice.name, task, predicted, scores, ranges, guessed.get("majority") or guessed.get("majority_by_word", {})
        )

    def _analyse(self, choice: Choice, task: Task, predicted: Sequence[SplitPredictions]) -> None:
        """Put what stands behind the scores into the details."""
        columns = {
            each.split: columns_of(task, each.split, each.rows.index, self.slices)
            for each in predicted
            if each.labels is not None
        }
        found = analysed(self.context, choice.model, task, predicted, scoring.score(task), columns)
        self.details[choice.name] |= found.details
        self.mistakes += found.mistakes
        for doubt in found.doubts:
            self.context.events.emit("warning", message=doubt)

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
        doubts = [
            trained_on(name, reference, chosen),
            no_better_than_ngrams(name, found.metrics, found.intervals, found.peers),
        ]
        for doubt in doubts:
            if doubt is not None:
                self.context.events.emit("warning", message=doubt)

    def _guess(
        self, choice: Choice, task: Task, labelled: Sequence[SplitPredictions]
    ) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
        """The baselines, fitted on the rows that the model was fine-tuned on."""
        if not labelled or not self.baselines:
            return {}, {name: "the benchmark has no public labels" for name in self.baselines if not labelled}
        try:
            train = task.rows("train", getattr(choice.subject, "max_train_samples", None))
        except DataError as error:
            if getattr(task, "trained_by", None) is None:
                raise
            return {}, dict.fromkeys(self.baselines, str(error))
        splits = {each.suffix: each.rows for each in labelled}
        return score_baselines(self.baselines, scoring.score(task), labelled[0].outputs(task), train, splits)

    def _warn(
        self,
        name: str,
        task: Task,
        predicted: Sequence[SplitPredictions],
        scores: dict[str, float],
        ranges: dict[str, tuple[float, float]],
        majority: dict[str, float],
    ) -> None:
        hidden = [each.split for each in predicted if each.labels is None]
        doubts = [each.doubt(task) for each in predicted]
        guess = {"guess": "giving each word its most frequent tag"} if task.head.kind == "token_classification" else {}
        doubts.append(no_better_than_majority(name, scores, ranges, majority, **guess))
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
        for each in self.predicted:
            each.write_beside(folder)
        for doubt in look_for_overlap(self.context, self.predicted, self.details):
            self.context.events.emit("warning", message=doubt)
        write_mistakes(folder / "mistakes.jsonl", self.mistakes)
        average, stands_on = glue_score(self.metrics)
        if stands_on:
            self.details[GLUE] = stands_on
            self.metrics |= {GLUE: average} if average else {}
        write_json(folder / "details.json", self.details)
        write_json(folder / "metrics.json", self.metrics)
        flat = {f"{name}.{metric}": value for name, scores in self.metrics.items() for metric, value in scores.items()}
        self.context.events.emit(
            "metric", step=sum(len(each.rows) for each in self.predicted) + self.measured, metrics=flat
        )


def _signatures(task: Task) -> dict[str, str]:
    """How each metric of texts was computed, as publications state it."""
    modules = {metric: import_module(METRICS.module(metric)) for metric in task.metrics}
    return {metric: module.signature() for metric, module in modules.items() if hasattr(module, "signature")}
