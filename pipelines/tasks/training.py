"""How a task is learnt: the keys that a stage gives, and what each kind of task hands to the training loop.

How a kind of task is learnt: the seam between the kinds of tasks and the stages that train them.

A `Teacher` stands behind each line of the LESSONS table, named as the kind of task. It imports without torch: it
judges a recipe, and once model and tokenizer are open it prepares a `Lesson`, all that the training loop needs. A
stage on one task runs one lesson; a stage on several tasks mixes theirs.

The keys of a subject that are about classes: smoothed labels, and classes that count more than others.

Keys of a subject that only tasks of the kind `causal` have.

Keys of a subject that only tasks with texts for answers have.

Keys of a subject that only tasks of finding answers in texts have.

What is learnt: a task, and how its examples are cut. The supervised stage is about one subject, multi-task about
several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from pipelines.core import architecture_fields
from pipelines.core.config import Block, ConfigIssue, ConfigIssues, Pick, show
from pipelines.core.errors import DataError
from pipelines.core.interfaces import Head, HeadKind
from pipelines.core.registry import LESSONS, OBJECTIVES
from pipelines.data import chat_templates
from pipelines.data.chat_templates import TemplateName
from pipelines.tasks.base import TaskField, resolve
from pipelines.tasks.extractive_qa.task import SHORTEST, widest_stride

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context, Score
    from pipelines.core.recipe import Recipe
    from pipelines.tasks.base import Task


LABELS: Mapping[str, float] = {"labels": 1.0}
"""The usual loss has one part: its items are the labels."""


@dataclass(frozen=True)
class PreparedTask:
    """What the training loop needs of one task. `fit` of `pipelines.trainers.trainer` says what each part promises."""

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


class TaskTraining:
    """Base of every kind's teacher. A new kind says its head and prepares its lesson."""

    head_kind: ClassVar[HeadKind]
    """The head that the kind is learnt with."""
    smoothed: ClassVar[tuple[str, ...]] = ()
    """The kinds of tasks whose `label_smoothing_factor` its lessons follow."""

    def head(self, subject: Subject, task: Task) -> Head:
        """The head the task is learnt with. May read the training rows to find the class names."""
        return task.head

    def mistakes(self, subject: Subject, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        """What is wrong with the subject for the recipe's model, places relative to the subject."""
        return ()

    def columns(self, task: Task) -> tuple[str, ...]:
        """Columns to be named in the fingerprint of the training rows."""
        return task.columns

    def texts(self, rows: Any) -> Iterator[str]:
        """The texts of `rows`, for a tokenizer."""
        return texts_of(rows)

    def prepare(
        self, subject: Subject, task: Task, context: Context, model: Any, tokenizer: Any, longest: int | None
    ) -> PreparedTask:
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
        context.events.emit(
            "warning" if share > 0.05 else "progress", message=f"{truncated} of {of} {what} ({share:.1%}); {limits}"
        )


def _weights(value: Any) -> Any:
    if value is None or value == "balanced":
        return value
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(each, int | float) and not isinstance(each, bool) for each in value)
    ):
        if all(each >= 0 and math.isfinite(each) for each in value) and any(value):
            return tuple(float(each) for each in value)
        raise ConfigIssues(
            [((), f"is {show(value)}, must be finite, hold no negative number, and at least one above 0")]
        )
    raise ConfigIssues([((), f"is {show(value)}, must be balanced or a list of numbers, one a class")])


ClassWeights = Annotated[Literal["balanced"] | tuple[float, ...] | None, BeforeValidator(_weights)]
"""The type of the key `class_weights`."""


def mistakes(subject: Subject, task: Task, teacher: TaskTraining) -> Iterable[ConfigIssue]:
    """What is wrong with the keys for this kind of task, as far as the recipe tells."""
    writes = task.kind == "seq2seq" or subject.as_text
    if subject.label_smoothing_factor and task.kind not in teacher.smoothed:
        remedy = "set objective.label_smoothing" if writes else "leave it out"
        what = "answers that are written" if subject.as_text else f"a task of the kind {task.kind}"
        yield ("label_smoothing_factor",), f"is {subject.label_smoothing_factor}, but does not reach {what}; {remedy}"
    if subject.class_weights is None:
        return
    if subject.as_text:
        yield (
            ("class_weights",),
            "is for tasks that are learnt with a head of classes, but here the answers are written; leave it out",
        )
    elif task.kind != "classification":
        yield (
            ("class_weights",),
            f"is for tasks of the kind classification, but this one is of the kind {task.kind}; leave it out",
        )
    elif isinstance(subject.class_weights, tuple) and task.labels and len(subject.class_weights) != len(task.labels):
        yield ("class_weights",), _count(subject.class_weights, task.labels)


def class_weights(subject: Subject, task: Task, labels: Sequence[Any]) -> Any:
    """Weights (classes,) by which the loss of each class is multiplied, as a tensor; None where all count the same.

    `balanced` is n / (classes · n_class), scikit-learn's formula. Any weights are scaled so that their mean over the
    training rows is 1: the loss of a whole epoch is then torch's weighted mean, and the learning rate keeps its
    meaning. A batch is divided by its number of examples, not by its own sum of weights, which would make what an
    example counts depend on the others in its batch. Raises DataError for weights that do not fit the classes.
    """
    import torch

    if subject.class_weights is None:
        return None
    names = task.head.labels
    counts = torch.bincount(torch.tensor(list(labels)), minlength=len(names)).double()
    if subject.class_weights == "balanced":
        weights = torch.where(counts > 0, counts.sum() / ((counts > 0).sum() * counts.clamp(min=1)), 1.0)
    elif len(subject.class_weights) != len(names):
        raise DataError(f"task '{task.name}': class_weights {_count(subject.class_weights, names)}")
    else:
        weights = torch.tensor(subject.class_weights, dtype=torch.double)
    mean = (weights * counts).sum() / counts.sum()
    if mean == 0:
        raise DataError(f"task '{task.name}': class_weights are 0 for every class that the training rows have")
    return (weights / mean).float()


def _count(weights: Sequence[float], names: Sequence[str]) -> str:
    known = ", ".join(names[:20])
    return f"has {len(weights)} numbers, must have {len(names)}, in the order of the classes: {known}"


KIND = "causal"
"""The kind of tasks whose answers are learnt as the continuation of what is asked."""
KEYS = ("chat_template", "train_on", "packing")
"""Keys that only such tasks have."""


def useless(subject: Subject, name: str) -> Iterable[ConfigIssue]:
    """Those that were given although the task is of another kind."""
    kind = subject.resolved(name).kind
    for key in KEYS if kind != KIND else ():
        if getattr(subject, key) is not None:
            yield (key,), f"is for tasks of the kind {KIND}, but this task's kind is {kind}; leave it out"


KIND_PAIR_KEYS = "seq2seq"
"""The kind of tasks whose answers are texts of their own."""
KEYS_PAIR_KEYS = ("objective", "max_source_length", "max_target_length")
"""Keys that only such tasks have."""


def useless_pair_keys(subject: Subject, name: str) -> Iterable[ConfigIssue]:
    """Those that were given although the task is of another kind."""
    for key in KEYS_PAIR_KEYS:
        if getattr(subject, key) is not None:
            kind = subject.resolved(name).kind
            yield (key,), f"is for tasks of the kind seq2seq, but this task's kind is {kind}; leave it out"


KIND_SPAN_KEYS = "qa"
"""The kind of tasks whose answers are spans of a text."""


def useless_span_keys(subject: Subject, name: str) -> Iterable[ConfigIssue]:
    """Those that were given although the task is of another kind."""
    kind = subject.resolved(name).kind
    if subject.doc_stride is not None and kind != KIND_SPAN_KEYS:
        yield (
            ("doc_stride",),
            f"is for tasks of the kind {KIND_SPAN_KEYS}, but this task's kind is {kind}; leave it out",
        )


def mistakes_span_keys(subject: Subject) -> Iterable[ConfigIssue]:
    """What is wrong with the sizes of windows."""
    if subject.max_length < SHORTEST:
        yield (
            ("max_length",),
            f"is {subject.max_length}, must be at least {SHORTEST} for a question and a part of its context",
        )
    elif subject.doc_stride is not None and subject.doc_stride > widest_stride(subject.max_length):
        yield (
            ("doc_stride",),
            (
                f"is {subject.doc_stride}, must be at most {widest_stride(subject.max_length)} with max_length {subject.max_length}, "
                "so that every window moves on beside the longest question"
            ),
        )


class Subject(Block):
    """The keys that say what is learnt."""

    as_text: ClassVar[bool] = False
    """Whether the answers are written, whatever the kind of the task."""
    task: TaskField
    """A named task such as `glue/mrpc`, or an inline one that describes your own files."""
    max_length: int = Field(128, ge=4, le=131072)
    """Tokens after which an example is cut."""
    objective: Annotated[Any, Pick(OBJECTIVES, "name")] = Field(None, validate_default=False)
    """For tasks of the kind `seq2seq`: `seq2seq` (the default) or `mask_predict`, or a mapping with its settings."""
    max_source_length: int | None = Field(None, ge=4, le=131072)
    """For tasks of the kind `seq2seq`: tokens after which a source is cut. Default: `max_length`."""
    max_target_length: int | None = Field(None, ge=4, le=131072)
    """For tasks of the kind `seq2seq`: tokens after which a target is cut. Default: `max_length`."""
    doc_stride: int | None = Field(None, ge=0, le=131072)
    """For tasks of the kind `qa`: tokens that neighbouring windows of a long context share. Default: a third of
    `max_length`."""
    auxiliary_lm: float | None = Field(None, gt=0, le=100)
    """The weight of naming the next tokens of the texts beside the task, for decoders; 0.5 in the paper on GPT."""
    label_smoothing_factor: float = Field(0.0, ge=0, lt=1)
    """The share of each label that is spread over all classes, as transformers' argument of that name."""
    class_weights: ClassWeights = None
    """For tasks of the kind `classification`: `balanced`, or a number a class; scaled to a mean of 1 over the
    training rows."""
    chat_template: TemplateName | None = None
    """For tasks of the kind `causal`: `alpaca`, `chatml`, `simple`, `zephyr`, or a Jinja file, saved with the
    tokenizer. Default: the tokenizer's own, else `simple`."""
    train_on: Literal["completions", "all"] | None = None
    """For tasks of the kind `causal`: learn the answers only (the default), or the prompts too."""
    packing: bool | None = None
    """For tasks of the kind `causal`: fill blocks of `max_length` tokens with several examples, which do not see
    each other."""
    max_train_samples: int | None = Field(None, ge=1)
    """Only the first rows of train."""
    max_eval_samples: int | None = Field(None, ge=1)
    """Only the first of the rows set aside for model selection."""

    def resolved(self, name: str) -> Task:
        """The task itself; one that is described in place goes by `name`."""
        return resolve(self.task, name)

    def teacher(self) -> TaskTraining:
        """Who knows how tasks of this kind are learnt."""
        found: TaskTraining = LESSONS.load("seq2seq" if self.as_text else self.resolved("task").kind)()
        return found

    def learning_mistakes(self, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        """What is wrong with the subject for the recipe's model, places relative to the subject."""
        shape = recipe.model.architecture
        longest = architecture_fields.resolve(shape).get("max_position_embeddings") if shape else None
        own_lengths = self.max_source_length is not None and self.max_target_length is not None
        if isinstance(longest, int) and longest < self.max_length and not own_lengths:
            yield ("max_length",), f"is {self.max_length}, but the model has max_position_embeddings {longest}"
        if self.task == "glue/ax":
            yield ("task",), "glue/ax has no training rows; train glue/mnli and evaluate on glue/ax"
        yield from useless(self, name)
        yield from useless_span_keys(self, name)
        teacher = self.teacher()
        found = list(teacher.mistakes(self, name, recipe))
        yield from found
        yield from mistakes(self, self.resolved(name), teacher)
        if any(place == ("task",) for place, _ in found):  # which says it better
            return
        if (
            shape
            and teacher.head_kind != "seq2seq_lm"
            and teacher.head_kind not in (known := architecture_fields.heads(shape))
        ):
            yield (
                ("task",),
                f"needs a {teacher.head_kind.replace('_', ' ')} head; this architecture has {', '.join(known)}",
            )

    def training_content(self, name: str) -> dict[str, str]:
        """Content hash of the training rows, by the columns that are read."""
        task = self.resolved(name)
        columns = self.teacher().columns(task)
        template = {"chat_template": chat_templates.content_of(self.chat_template)} if self.chat_template else {}
        return {f"train.{'+'.join(columns)}" if columns else "train": task.content()["train"]} | template

    def needed_tokens(self) -> tuple[str, ...]:
        """Tokens that a tokenizer trained for the subject has beside the usual ones."""
        return chat_templates.marks_of(self.chat_template)

    def training_texts(self, name: str) -> Iterator[str]:
        """The texts of the training rows, for a tokenizer."""
        return self.teacher().texts(self.resolved(name).rows("train", self.max_train_samples))


def texts_of(rows: Any) -> Iterator[str]:
    """The texts, the second texts and the labels that are texts."""
    return chain(rows.texts, rows.pairs or (), (label for label in rows.labels or () if isinstance(label, str)))
