"""Evaluating classification: a row of logits for each text, brought into the task's order of classes."""

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


class ClassificationEvaluation(TaskEvaluation):
    """One row of logits a text."""

    def ask(self, request: EvaluationRequest) -> Predictions:
        name, length = request.choice.name, request.length()
        order = columns(request.task.head.labels, request.model.config, name, request.choice.model)
        predicted = []
        for suffix, split, rows in request.splits():
            logits = predict(request.model, request.tokenizer, rows, length, **request.running(split))
            predicted.append(ClassPredictions(name, split, suffix, rows, logits if order is None else logits[:, order]))
        return Predictions(predicted, length, order)

    def examples(self, task: LabelledTask) -> Sequence[Sequence[str]]:
        if len(task.columns) == 2:
            return PAIRS
        return [
            (text,)
            for text in ("A warm and funny film, and never a minute too long.", "The story goes nowhere, slowly.")
        ]

    def score(self, task: Task) -> Score:
        return score_decisions(task)
