"""Evaluating sequence to sequence: what a model that writes makes of each source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.tasks.evaluation import EvaluationRequest, Predictions, TaskEvaluation

if TYPE_CHECKING:
    from pipelines.core.interfaces import Score, Task


class Texts(TaskEvaluation):
    """One written text a source, as the stage's `generation` says."""

    def ask(self, asked: EvaluationRequest) -> Predictions:
        from pipelines.models.generate import write
        from pipelines.tasks.predictions import Written

        length, generation = asked.length(), asked.stage.generation
        longest = asked.choice.trained_target_length(asked.context.recipe)
        written = []
        for suffix, split, rows in asked.splits():
            texts = write(
                asked.model, asked.tokenizer, rows, length, generation, target_length=longest, **asked.running(split)
            )
            written.append(Written(asked.choice.name, split, suffix, rows, texts))
        return Predictions(written, length, generation=generation.model_dump())

    def score(self, task: Task) -> Score:
        from pipelines.tasks.scoring import score_texts

        return score_texts(task)
