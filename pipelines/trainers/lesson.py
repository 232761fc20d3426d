"""How a kind of task is learnt: the seam between the kinds of tasks and the stages that train them.

A `Teacher` stands behind each line of the LESSONS table, named as the kind of task. It imports without torch: it judges a
recipe, and once model and tokenizer are open it prepares a `Lesson`, all that the training loop needs. A stage on one task
runs one lesson; a stage on several tasks mixes theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.blocks import Found
from pipelines.errors import DataError
from pipelines.protocols import Head, HeadKind
from pipelines.trainers.subject import texts_of

if TYPE_CHECKING:
    from pipelines.data.tasks import Task
    from pipelines.protocols import Context, Score
    from pipelines.recipe import Recipe
    from pipelines.trainers.subject import Subject

LABELS: Mapping[str, float] = {"labels": 1.0}
"""The usual loss has one part: its items are the labels."""


@dataclass(frozen=True)
class Lesson:
    """What the training loop needs of one task. `fit` of `pipelines.trainers.loop` says what each part promises."""

    examples: Any
    """Encoded training rows: `len`, `[position]`, `.lengths` (examples,), `.select(positions)`."""
    collate: Callable[[list[dict[str, Any]]], dict[str, Any]]
    """Turns examples into a batch."""
    loss: Callable[[Any, dict[str, Any]], tuple[Any, Any]]
    """`loss(model, inputs) -> (sums over the items of each part, outputs)`."""
    label_names: Mapping[str, float] = field(default_factory=lambda: LABELS)
    """Keys of a batch whose entries other than -100 are the items of one part of the loss, with the part's weight."""
    marked: bool = False
    """Whether every example is given its draw, for randomness by counter."""
    score: Score | None = None
    """How held-out logits are scored; None where models are selected by the loss."""
    metric: str = "loss"
    """The name that models are selected by."""
    finish: Callable[[Any], None] = lambda model: None
    """Takes away from the trained model what only the learning needed."""


class Teacher:
    """Base of every kind's teacher. A new kind says its head and prepares its lesson."""

    head_kind: ClassVar[HeadKind]
    """The head that the kind is learnt with."""
    smoothed: ClassVar[tuple[str, ...]] = ()
    """The kinds of tasks whose `label_smoothing_factor` its lessons follow."""

    def head(self, subject: Subject, task: Task) -> Head:
        """The head the task is learnt with. May read the training rows to find the class names."""
        return task.head

    def mistakes(self, subject: Subject, name: str, recipe: Recipe) -> Iterable[Found]:
        """What is wrong with the subject for the recipe's model, places relative to the subject."""
        return ()

    def columns(self, task: Task) -> tuple[str, ...]:
        """Columns to be named in the fingerprint of the training rows."""
        return task.columns

    def texts(self, rows: Any) -> Iterator[str]:
        """The texts of `rows`, for a tokenizer."""
        return texts_of(rows)

    def prepare(self, subject: Subject, task: Task, context: Context, model: Any, tokenizer: Any, longest: int | None) -> Lesson:
        """The lesson, for a model that no tuner has touched yet; no example is longer than `longest` tokens.

        Raises DataError for rows that cannot be learnt from, ModelError for a model that cannot learn them.
        """
        raise NotImplementedError


def training_rows(subject: Subject, task: Task) -> Any:
    """The rows to learn from. Raises DataError when there are none."""
    rows = task.rows("train", subject.max_train_samples)
    if len(rows) == 0:
        raise DataError(f"task '{task.name}' has no training rows")
    return rows


def tell_truncated(context: Context, truncated: int, of: int, what: str, limits: str) -> None:
    """An event when examples lost their end; a warning when they are more than one in twenty."""
    if context.world.is_main and truncated:
        share = truncated / of
        context.events.emit("warning" if share > 0.05 else "progress", message=f"{truncated} of {of} {what} ({share:.1%}); {limits}")
