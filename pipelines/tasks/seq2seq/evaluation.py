"""Evaluating sequence to sequence: what a model that writes makes of each source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.tasks.evaluation import EvaluationRequest, Predictions, TaskEvaluation

if TYPE_CHECKING:
    from pipelines.core.interfaces import Score, Task
    from pipelines.tasks.base import LabelledTask


class Seq2SeqEvaluation(TaskEvaluation):
    """One written text a source, as the stage's `generation` says."""

    def ask(self, request: EvaluationRequest) -> Predictions:
        from pipelines.models.generate import write
        from pipelines.tasks.predictions import TextPredictions

        length, generation = request.length(), request.stage.generation
        longest = request.choice.trained_target_length(request.context.recipe)
        written = []
        for suffix, split, rows in request.splits():
            texts = write(
                request.model,
                request.tokenizer,
                rows,
                length,
                generation,
                target_length=longest,
                **request.running(split),
            )
            written.append(TextPredictions(request.choice.name, split, suffix, rows, texts))
        return Predictions(written, length, generation=generation.model_dump())

    def examples(self, task: LabelledTask) -> Sequence[Sequence[str]]:
        return [("A man in a blue shirt is standing on a ladder.",), ("Two dogs are playing in the snow.",)]

    def score(self, task: Task) -> Score:
        from pipelines.tasks.scoring import score_texts

        return score_texts(task)
