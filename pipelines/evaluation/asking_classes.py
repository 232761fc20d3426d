"""Asking for a class, or a number, for each text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.evaluation.asking import Asked, Examiner

if TYPE_CHECKING:
    from pipelines.evaluation.answers import Answers
    from pipelines.protocols import Score, Task


class Classes(Examiner):
    """One row of logits a text, brought into the task's order of classes."""

    def ask(self, asked: Asked) -> Answers:
        from pipelines.evaluation.answers import Answers
        from pipelines.evaluation.labels import columns
        from pipelines.evaluation.predict import predict
        from pipelines.evaluation.predictions import Predicted

        name = asked.choice.name
        order = columns(asked.task.head.labels, asked.model.config, name, asked.choice.model)
        length = asked.length()
        predicted = []
        for suffix, split, rows in asked.splits():
            logits = predict(asked.model, asked.tokenizer, rows, length, **asked.running(split))
            predicted.append(Predicted(name, split, suffix, rows, logits if order is None else logits[:, order]))
        return Answers(predicted, length, order)

    def score(self, task: Task) -> Score:
        from pipelines.evaluation.scoring import score_decisions

        return score_decisions(task)
