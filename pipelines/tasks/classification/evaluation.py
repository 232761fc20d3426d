"""Evaluating classification and regression: a row of logits, or a number, for each text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.tasks.evaluation import EvaluationRequest, Predictions, TaskEvaluation, columns

if TYPE_CHECKING:
    from pipelines.core.interfaces import Score, Task


class Classes(TaskEvaluation):
    """One row of logits a text, brought into the task's order of classes."""

    def ask(self, asked: EvaluationRequest) -> Predictions:
        from pipelines.models.predict import predict
        from pipelines.tasks.predictions import Predicted

        name = asked.choice.name
        order = columns(asked.task.head.labels, asked.model.config, name, asked.choice.model)
        length = asked.length()
        predicted = []
        for suffix, split, rows in asked.splits():
            logits = predict(asked.model, asked.tokenizer, rows, length, **asked.running(split))
            predicted.append(Predicted(name, split, suffix, rows, logits if order is None else logits[:, order]))
        return Predictions(predicted, length, order)

    def score(self, task: Task) -> Score:
        from pipelines.tasks.scoring import score_decisions

        return score_decisions(task)
