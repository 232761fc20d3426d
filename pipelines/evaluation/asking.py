"""How a model is asked the questions of a benchmark: the seam between the heads and the stage that scores them.

An `Examiner` stands behind each line of the EXAMINERS table, named as the head that it asks. `Asked` is all that it is
given; what the model said about a split comes back as a `Said` (see `predictions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.blocks import Found
from pipelines.registry import EXAMINERS

if TYPE_CHECKING:
    from pipelines.evaluation.answers import Answers
    from pipelines.evaluation.choice import Choice
    from pipelines.evaluation.evaluate import Evaluate
    from pipelines.protocols import Context, Rows, Score, Task
    from pipelines.recipe import Recipe

HEADS = {
    "classification": "sequence_classification",
    "regression": "sequence_classification",
    "seq2seq": "seq2seq_lm",
    "causal": "causal_lm",
    "token_classification": "token_classification",
    "qa": "question_answering",
    "multiple_choice": "multiple_choice",
    "preference": "reward",
}
"""The head that answers each kind of task: known without reading data, as `Task.head` is not."""


def mistakes(stage: Evaluate, choices: Iterable[Choice], recipe: Recipe) -> Iterable[Found]:
    """What is wrong with asking for these benchmarks, places relative to the stage."""
    for choice in choices:
        if choice.kind in HEADS:
            yield from EXAMINERS.load(HEADS[choice.kind])().mistakes(stage, choice, recipe)


@dataclass(frozen=True)
class Asked:
    """One benchmark, the model that is asked, and how."""

    stage: Evaluate
    choice: Choice
    task: Task
    context: Context
    model: Any
    tokenizer: Any

    def length(self) -> int:
        """Tokens after which a text is cut: what the stage says, else what the model was trained with, as far as it has positions."""
        from pipelines.evaluation.predict import usable_length

        wanted = self.stage.max_length or self.choice.trained_length(self.context.recipe)
        return usable_length(self.model, self.tokenizer, wanted)

    def splits(self) -> Iterator[tuple[str, str, Rows]]:
        """(suffix of the metric names, split, its rows) of everything that is evaluated."""
        for suffix, split in self.task.evaluation_splits.items():
            yield suffix, split, self.task.rows(split, self.stage.max_eval_samples)

    def running(self, split: str) -> dict[str, Any]:
        """Keywords of `predict` and its like: processes, device, batch size, progress, precision."""
        from pipelines.evaluation.predict import device
        from pipelines.evaluation.progress import progress_events

        return {
            "world": self.context.world,
            "gather": self.context.gather,
            "device": device(),
            "batch_size": self.stage.per_device_eval_batch_size,
            "progress": progress_events(self.context, f"{self.choice.name} {split}"),
            **({"precision": "bf16"} if self.stage.mixed_precision == "bf16" else {}),
        }


class Examiner:
    """Base of every head's examiner. Imports without torch."""

    def mistakes(self, stage: Evaluate, choice: Choice, recipe: Recipe) -> Iterable[Found]:
        """What is wrong with asking for this benchmark, places relative to the stage."""
        return ()

    def ask(self, asked: Asked) -> Answers:
        """What the model says about every evaluation split, on every process."""
        raise NotImplementedError

    def score(self, task: Task) -> Score:
        """The task's scores as one function of what `Said.said` and `Said.labels` hold."""
        raise NotImplementedError
