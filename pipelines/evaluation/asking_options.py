"""Asking for the best of several options."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pipelines.evaluation.asking import Asked, Examiner

if TYPE_CHECKING:
    from pipelines.evaluation.answers import Answers
    from pipelines.protocols import Score, Task


class Options(Examiner):
    """A logit for each option of each question."""

    def ask(self, asked: Asked) -> Answers:
        import numpy as np

        from pipelines.data.choices import collate_choices, encode_choices
        from pipelines.evaluation.answers import Answers
        from pipelines.evaluation.chosen import Chosen
        from pipelines.evaluation.predict import forward

        length, name = asked.length(), asked.choice.name
        said = []
        for suffix, split, given in asked.splits():
            rows: Any = given
            examples = encode_choices(asked.tokenizer, rows, length)
            running = asked.running(split)
            running["batch_size"] = max(1, running["batch_size"] // max(rows.choices, 1))  # as many texts as of other tasks
            logits = forward(asked.model, examples, partial(collate_choices, asked.tokenizer), _logits, **running)
            said.append(Chosen(name, split, suffix, rows, np.stack(logits)))
        return Answers(said, length)

    def score(self, task: Task) -> Score:
        from pipelines.evaluation.chosen import score_options

        return score_options(task)


def _logits(outputs: Any, inputs: Any) -> Any:
    """(questions, options). Raises ModelError for a model that scores something else."""
    from pipelines.errors import ModelError

    logits = outputs.logits.float().cpu().numpy()
    wanted = tuple(inputs["input_ids"].shape[:2])
    if logits.shape != wanted:
        raise ModelError(f"the model gives outputs of shape {logits.shape}, where a multiple choice head gives {wanted}; evaluate one")
    return logits
