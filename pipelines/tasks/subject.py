"""What is learnt: a task, and how its examples are cut.

`Subject` holds the keys that a stage gives beside its task; the supervised stage is about one subject, multi-task
about several. Which keys fit, and what is wrong with them for the recipe's model, is told without torch: what a kind
of task knows of it stands in its `task.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from pipelines.architectures.arithmetic import WORD_HEADS
from pipelines.core.config import Block, ConfigIssue, ConfigIssues, Pick, show
from pipelines.core.costs import BYTES_PER_TOKEN, Example
from pipelines.core.interfaces import Head, Pooling
from pipelines.core.model_types import pooling_misfit, sees_ahead
from pipelines.core.registry import OBJECTIVES, TASK_KINDS
from pipelines.data import chat_templates
from pipelines.data.chat_templates import TemplateName
from pipelines.tasks.base import TaskField, TaskKind, resolve
from pipelines.tasks.known import head_without_rows, mean_tokens, task_rows
from pipelines.tasks.training import training_of

if TYPE_CHECKING:
    from pipelines.core.recipe import Recipe
    from pipelines.tasks.base import LabelledTask
    from pipelines.tasks.training import TaskTraining

LANGUAGE_MODELS = ("finery", "gpt2", "gpt_neox", "llama", "openai-gpt", "qwen2", "qwen3")
"""Decoders whose logits are nothing but the output matrix times what the body says: `auxiliary_lm` is for them."""

WRITES = Head("seq2seq_lm")
"""The head of a task whose answers are written."""


def _weights(value: object) -> Any:
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


class Subject(Block):
    """The keys that say what is learnt."""

    as_text: ClassVar[bool] = False
    """Whether the answers are written, whatever the kind of the task."""
    if TYPE_CHECKING:
        id: str  # that of the stage, or of one of its tasks
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
    pooling: Pooling | None = None
    """For tasks of the kinds `classification`, `regression` and `multiple_choice`: what an encoder's head reads of a
    text, its `first` token or the `mean` of its tokens. Default: as the model's own class does, the first token of a
    BERT."""
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
    max_predict_samples: int | None = Field(None, ge=1)
    """What evaluate stages predict of a split without public labels where they do not say: its first rows."""

    def resolved(self, name: str) -> LabelledTask:
        """The task itself; one that is described in place goes by `name`."""
        return resolve(self.task, name)

    def learnt_as(self) -> type[TaskKind]:
        """The kind of task that the examples are: `seq2seq` where the answers are written."""
        kind: type[TaskKind] = TASK_KINDS.load("seq2seq" if self.as_text else self.resolved("task").kind)
        return kind

    def training(self) -> TaskTraining:
        """How the task is learnt."""
        return training_of("seq2seq" if self.as_text else self.resolved("task").kind)

    def learning_mistakes(self, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        """What is wrong with the subject for the recipe's model, places relative to the subject."""
        words, heads = recipe.model.words(), recipe.model.heads()
        own_lengths = self.max_source_length is not None and self.max_target_length is not None
        if not own_lengths and (why := recipe.model.too_long(self, "max_length")) is not None:
            yield ("max_length",), why
        task = self.resolved(name)
        if "train" not in task.splits and task.trained_by is not None:
            yield (
                ("task",),
                f"{task.name} has no training rows; train {task.trained_by} and evaluate on {task.name}",
            )
        kind = self.learnt_as()
        issues = [*unused_keys(self, name), *kind.training_issues(self, name, recipe)]
        yield from issues
        yield from class_key_issues(self, task)
        if (
            self.pooling is not None
            and words is not None
            and not self.as_text
            and (why := pooling_misfit(self.pooling, words))
        ):
            yield ("pooling",), why
        if any(place == ("task",) for place, _ in issues):  # which says it better
            return
        if heads is not None and kind.head_kind != "seq2seq_lm" and kind.head_kind not in heads:
            yield (
                ("task",),
                f"needs a {kind.head_kind.replace('_', ' ')} head; this architecture has {', '.join(heads)}",
            )

    def training_content(self, name: str) -> dict[str, str]:
        """Content hash of the training rows, by the columns that are read."""
        task = self.resolved(name)
        columns = self.learnt_as().columns_read(task)
        template = {"chat_template": chat_templates.content_of(self.chat_template)} if self.chat_template else {}
        return {f"train.{'+'.join(columns)}" if columns else "train": task.content()["train"]} | template

    def planned(self, task: LabelledTask, notes: list[str]) -> tuple[Head, Example, int | None]:
        """(the head, what passes through the model for an example, training rows or None), no row being read."""
        head = WRITES if self.as_text else replace(head_without_rows(task, notes), pooling=self.pooling)
        rows = task_rows(task, "train")
        if self.max_train_samples is not None:
            rows = self.max_train_samples if rows is None else min(rows, self.max_train_samples)
        length, target = self.max_source_length or self.max_length, self.max_target_length or self.max_length
        predicted = target if head.kind in WORD_HEADS else 0
        alone = self.auxiliary_lm is None
        mean = None if self.as_text else mean_tokens(task, "train")
        notes.append(self._lengths_told(task, mean))
        sequences = 1 if self.as_text else self.learnt_as().sequences(task) or 1
        example = Example(length, target, predicted, sequences, whole=not alone, frozen_once=alone, mean=mean)
        return head, example, rows

    def _lengths_told(self, task: LabelledTask, mean: tuple[int, int] | None) -> str:
        if mean is None:
            return f"at most: every sequence of '{task.name}' is counted with max_length {self.max_length}"
        what = f"{mean[0]} tokens a text" + (f" and {mean[1]} a target" if self.learnt_as().writes() else "")
        return f"operations and time by about {what} of '{task.name}', taking a token for {BYTES_PER_TOKEN} bytes"

    def needed_tokens(self) -> tuple[str, ...]:
        """Tokens that a tokenizer trained for the subject has beside the usual ones."""
        return chat_templates.marks_of(self.chat_template)

    def training_texts(self, name: str) -> Iterator[str]:
        """The texts of the training rows, for a tokenizer."""
        return self.learnt_as().texts(self.resolved(name).rows("train", self.max_train_samples))


def unused_keys(subject: Subject, name: str) -> Iterable[ConfigIssue]:
    """Keys that were given although only tasks of another kind have them."""
    kind = subject.resolved(name).kind
    own = {*TASK_KINDS.load(kind).stage_keys, *subject.learnt_as().stage_keys}
    given = [key for key in OPTIONAL_KEYS if key not in own and getattr(subject, key, None) is not None]
    for key in given:
        if owners := owners_of_keys().get(key):
            named = " or ".join(owners)
            yield (key,), f"is for tasks of the kind {named}, but this task's kind is {kind}; leave it out"


EVERY_KIND = ("auxiliary_lm", "max_train_samples", "max_eval_samples", "max_predict_samples")
OPTIONAL_KEYS = tuple(
    key for key, about in Subject.model_fields.items() if about.default is None and key not in EVERY_KIND
)
"""Keys that may be for tasks of some kinds alone. Only where one is given that the task's own kind does not have, are
the other kinds loaded."""


@cache
def owners_of_keys() -> Mapping[str, Sequence[str]]:
    """Keys of a stage that only tasks of some kinds have, and those kinds."""
    owners: dict[str, list[str]] = {}
    for name in TASK_KINDS:
        kind: type[TaskKind] = TASK_KINDS.load(name)
        for key in kind.stage_keys if kind.read_as is None else ():
            owners.setdefault(key, []).append(name)
    return owners


WRITTEN = "is for tasks that are learnt with a head of classes, but here the answers are written; leave it out"


def class_key_issues(subject: Subject, task: LabelledTask) -> Iterable[ConfigIssue]:
    """What is wrong with the keys for this kind of task, as far as the recipe tells."""
    if subject.label_smoothing_factor and not subject.learnt_as().smooths_labels:
        remedy = "set objective.label_smoothing" if subject.learnt_as().writes() else "leave it out"
        what = "answers that are written" if subject.as_text else f"a task of the kind {task.kind}"
        yield ("label_smoothing_factor",), f"is {subject.label_smoothing_factor}, but does not reach {what}; {remedy}"
    if subject.pooling is not None and "pooling" in TASK_KINDS.load(task.kind).stage_keys and subject.as_text:
        yield ("pooling",), WRITTEN
    if subject.class_weights is None or "class_weights" not in TASK_KINDS.load(task.kind).stage_keys:
        return
    if subject.as_text:
        yield ("class_weights",), WRITTEN
    elif isinstance(subject.class_weights, tuple) and task.labels and len(subject.class_weights) != len(task.labels):
        yield ("class_weights",), wrong_count(subject.class_weights, task.labels)


def wrong_count(weights: Sequence[float], names: Sequence[str]) -> str:
    """The sentence, without its subject, for weights of classes that are too many or too few."""
    listed = ", ".join(names[:20])
    return f"has {len(weights)} numbers, must have {len(names)}, in the order of the classes: {listed}"


def auxiliary_lm_issues(subject: Subject, recipe: Recipe) -> Iterable[ConfigIssue]:
    """The issue where `auxiliary_lm` is asked for of a model that has no such loss."""
    words = recipe.model.words()
    if subject.auxiliary_lm is None or words is None:
        return
    if sentence := unfit_for_auxiliary_lm(words):
        yield ("auxiliary_lm",), sentence


def no_auxiliary_lm(subject: Subject, name: str) -> Iterable[ConfigIssue]:
    """The issue where `auxiliary_lm` is asked for beside a task without one answer a text."""
    if subject.auxiliary_lm is not None:
        kind = subject.resolved(name).kind
        yield ("auxiliary_lm",), f"is for tasks with one answer a text, but this task's kind is {kind}; leave it out"


def unfit_for_auxiliary_lm(architecture: Mapping[str, object]) -> str | None:
    """Why a model of this resolved architecture has no auxiliary loss, as a sentence without its subject."""
    model_type = architecture.get("model_type", "finery")
    if sentence := sees_ahead(architecture):
        return sentence
    if model_type not in LANGUAGE_MODELS:
        return f"is offered for {', '.join(LANGUAGE_MODELS)}, not for {model_type}; leave it out"
    return None
