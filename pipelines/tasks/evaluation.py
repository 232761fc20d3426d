"""How a kind of task is evaluated: what is asked of a model about a benchmark, and what it answers.

What one model said about one benchmark, and how it was asked.

How a model is asked the questions of a benchmark: the seam between the heads and the stage that scores them.

An `Examiner` stands behind each line of the EXAMINERS table, named as the head that it asks. `Asked` is all that it is
given; what the model said about a split comes back as a `Said` (see `predictions`).

Asking a model about one split, whether its answers are public or not: what a prediction or a submission needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipelines.core.config import ConfigIssue
from pipelines.core.registry import EXAMINERS
from pipelines.tasks.predictions import SplitPredictions

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context, Rows, Score, Task
    from pipelines.core.recipe import Recipe
    from pipelines.evaluation.benchmark_selection import Choice
    from pipelines.evaluation.evaluate import Evaluate


@dataclass(frozen=True)
class Predictions:
    """The answers to every evaluation split of a benchmark."""

    predicted: Sequence[SplitPredictions]
    max_length: int
    """Tokens after which a text was cut."""
    columns: list[int] | None = None
    """The model's output behind each class of the task; None where both have the same order."""
    generation: Mapping[str, Any] | None = None
    """How texts were written; None where the answers are no texts."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else it takes to ask the same again, and to read the scores rightly: it stands in `details.json`."""


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


def mistakes(stage: Evaluate, choices: Iterable[Choice], recipe: Recipe) -> Iterable[ConfigIssue]:
    """What is wrong with asking for these benchmarks, places relative to the stage."""
    for choice in choices:
        if choice.kind in HEADS:
            yield from EXAMINERS.load(HEADS[choice.kind])().mistakes(stage, choice, recipe)


@dataclass(frozen=True)
class EvaluationRequest:
    """One benchmark, the model that is asked, and how."""

    stage: Evaluate
    choice: Choice
    task: Task
    context: Context
    model: Any
    tokenizer: Any

    def length(self) -> int:
        """Tokens after which a text is cut: what the stage says, else what the model was trained with, as far as
        it has positions."""
        from pipelines.models.predict import usable_length

        wanted = self.stage.max_length or self.choice.trained_length(self.context.recipe)
        return usable_length(self.model, self.tokenizer, wanted)

    def splits(self) -> Iterator[tuple[str, str, Rows]]:
        """(suffix of the metric names, split, its rows) of everything that is evaluated."""
        for suffix, split in self.task.evaluation_splits.items():
            yield suffix, split, self.task.rows(split, self.stage.max_eval_samples)

    def running(self, split: str) -> dict[str, Any]:
        """Keywords of `predict` and its like: processes, device, batch size, progress, precision."""
        from pipelines.models.predict import device, progress_events

        return {
            "world": self.context.world,
            "gather": self.context.gather,
            "device": device(),
            "batch_size": self.stage.per_device_eval_batch_size,
            "progress": progress_events(self.context, f"{self.choice.name} {split}"),
            **({"precision": "bf16"} if self.stage.mixed_precision == "bf16" else {}),
        }


class TaskEvaluation:
    """Base of every head's examiner. Imports without torch."""

    def mistakes(self, stage: Evaluate, choice: Choice, recipe: Recipe) -> Iterable[ConfigIssue]:
        """What is wrong with asking for this benchmark, places relative to the stage."""
        return ()

    def ask(self, asked: EvaluationRequest) -> Predictions:
        """What the model says about every evaluation split, on every process."""
        raise NotImplementedError

    def score(self, task: Task) -> Score:
        """The task's scores as one function of what `Said.said` and `Said.labels` hold."""
        raise NotImplementedError


@dataclass(frozen=True)
class AskedOfASplit(EvaluationRequest):
    """One split of a task, without its labels."""

    split: str = "test"

    def splits(self) -> Iterator[tuple[str, str, Rows]]:
        """The split alone."""
        yield "", self.split, without_labels(self.task.rows(self.split, self.stage.max_eval_samples))


def without_labels(rows: Any) -> Any:
    """The rows, whose labels are not looked at."""
    hidden: dict[str, Any] = {"labels": None, "starts": None} if hasattr(rows, "starts") else {"labels": None}
    return replace(rows, **hidden)
