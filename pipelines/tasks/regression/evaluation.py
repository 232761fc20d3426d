"""Evaluating regression: a number for each text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.models.predict import predict
from pipelines.tasks.evaluation import PAIRS, EvaluationRequest, Predictions, TaskEvaluation, columns
from pipelines.tasks.predictions import ClassPredictions
from pipelines.tasks.scoring import score_decisions

if TYPE_CHECKING:
    from pipelines.core.interfaces import Score, Task
    from pipelines.tasks.base import LabelledTask


class RegressionEvaluation(TaskEvaluation):
    """One number a text."""

    def ask(self, request: EvaluationRequest) -> Predictions:
        name, length = request.choice.name, request.length()
        columns((), request.model.config, name, request.choice.model)  # refuses a head of classes
        predicted = [
            ClassPredictions(
                name,
                split,
                suffix,
                rows,
                predict(request.model, request.tokenizer, rows, length, **request.running(split)),
            )
            for suffix, split, rows in request.splits()
        ]
        return Predictions(predicted, length)

    def examples(self, task: LabelledTask) -> Sequence[Sequence[str]]:
        if len(task.columns) == 2:
            return PAIRS
        return [(text,) for text in ("It was the best day of the year.", "Nothing much happened.")]

    def score(self, task: Task) -> Score:
        return score_decisions(task)
