"""Asking for a text: what a model that writes makes of each source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.evaluation.asking import Asked, Examiner

if TYPE_CHECKING:
    from pipelines.evaluation.answers import Answers
    from pipelines.protocols import Score, Task


class Texts(Examiner):
    """One written text a source, as the stage's `generation` says."""

    def ask(self, asked: Asked) -> Answers:
        from pipelines.evaluation.answers import Answers
        from pipelines.evaluation.decoding import write
        from pipelines.evaluation.predictions import Written

        length, generation = asked.length(), asked.stage.generation
        longest = asked.choice.trained_target_length(asked.context.recipe)
        written = []
        for suffix, split, rows in asked.splits():
            texts = write(asked.model, asked.tokenizer, rows, length, generation, target_length=longest, **asked.running(split))
            written.append(Written(asked.choice.name, split, suffix, rows, texts))
        return Answers(written, length, generation=generation.model_dump())

    def score(self, task: Task) -> Score:
        from pipelines.evaluation.scoring import score_texts

        return score_texts(task)
