"""The rows of a task as questions that a language model can be asked: what is asked, and what may be answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.data.multiple_choice import LETTERS, ChoiceTask
from pipelines.errors import DataError
from pipelines.evaluation.prompts import OPTIONS, Prompt, lettered
from pipelines.protocols import Rows

CONTENT_FREE = ("N/A", "", "[MASK]")
"""What stands for a question without content. Zhao et al. 2021, section 5, arxiv.org/abs/2102.09690."""


@dataclass(frozen=True)
class Question:
    """One row."""

    fields: Mapping[str, str]
    """What the prompt's placeholders stand for."""
    options: tuple[str, ...]
    """The possible answers; empty where answers are texts."""
    answer: str | None
    """The right answer, as an example would give it; None where it is not public."""
    group: int | None
    """The class, for drawing as many of each; None where there are no classes."""

    def without_content(self, words: str) -> Question:
        """The same question with nothing in it."""
        return replace(self, fields={name: text if name == OPTIONS else words for name, text in self.fields.items()})


@dataclass(frozen=True)
class Questions:
    """The questions of one split, in the order of the rows."""

    rows: Rows
    each: Sequence[Question]

    def __len__(self) -> int:
        return len(self.each)


def questions_of(task: Any, prompt: Prompt, split: str, limit: int | None = None) -> Questions:
    """The first `limit` rows of a split as questions. Raises DataError."""
    makers = {
        "classification": _classes, "regression": _numbers, "multiple_choice": _choices, "qa": _spans, "seq2seq": _texts, "causal": _dialogues,
    }  # fmt: skip
    if task.kind not in makers:
        raise DataError(f"'{task.name}' is of the kind {task.kind}, whose answers cannot be asked for in a prompt; train a head for it instead")
    rows = task.rows(split, limit)
    return Questions(rows, makers[task.kind](task, prompt, split, limit, rows))


def _fields(task: Any, rows: Rows) -> list[dict[str, str]]:
    """The texts of each row by column."""
    columns = [rows.texts] if rows.pairs is None else [rows.texts, rows.pairs]
    return [dict(zip(task.columns, texts, strict=True)) for texts in zip(*columns, strict=True)]


def _classes(task: Any, prompt: Prompt, split: str, limit: int | None, rows: Rows) -> list[Question]:
    names = task.head.labels
    words = prompt.answers if isinstance(prompt.answers, tuple) else names
    if len(words) != len(names):
        raise DataError(f"the prompt of '{task.name}' has {len(words)} answers, but its classes are {', '.join(names)}; write a word for each")
    labels: Sequence[Any] = [None] * len(rows) if rows.labels is None else rows.labels
    return [
        Question(fields, words, None if label is None else words[label], label)
        for fields, label in zip(_fields(task, rows), labels, strict=True)
    ]


def _numbers(task: Any, prompt: Prompt, split: str, limit: int | None, rows: Rows) -> list[Question]:
    if not isinstance(prompt.answers, tuple):
        raise DataError(f"the answers of '{task.name}' are numbers: name those that may be given in its prompt, 'answers: [\"0\", \"1\", …]'")
    values = [float(each) for each in prompt.answers]
    labels: Sequence[Any] = [None] * len(rows) if rows.labels is None else rows.labels
    nearest = [None if label is None else min(range(len(values)), key=lambda at: abs(values[at] - label)) for label in labels]
    return [
        Question(fields, prompt.answers, None if at is None else prompt.answers[at], at)
        for fields, at in zip(_fields(task, rows), nearest, strict=True)
    ]


def _choices(task: ChoiceTask, prompt: Prompt, split: str, limit: int | None, rows: Rows) -> list[Question]:
    """Question and options apart, which the task joins for models with a head."""
    columns = tuple(name for name in task.columns if name != task.context)
    bare: Any = replace(task, context=None, columns=columns, blank=None).rows(split, limit)
    [name] = [column for column in columns if column not in task.option_columns]
    labels: Sequence[Any] = [None] * len(rows) if rows.labels is None else rows.labels
    found = []
    for at, (question, options, label) in enumerate(zip(bare.texts, bare.options, labels, strict=True)):
        words = tuple(LETTERS[: len(options)]) if prompt.answers == "letters" else tuple(options)
        context = {} if task.context is None else {task.context: rows.texts[at]}
        fields = {**context, name: question, OPTIONS: lettered(options)}
        found.append(Question(fields, words, None if label is None else words[label], label))
    return found


def _spans(task: Any, prompt: Prompt, split: str, limit: int | None, rows: Rows) -> list[Question]:
    references: Sequence[Any] = [None] * len(rows) if rows.labels is None else rows.labels
    return [
        Question(fields, (), None if answers is None else next(iter(answers), prompt.no_answer), None)
        for fields, answers in zip(_fields(task, rows), references, strict=True)
    ]


def _texts(task: Any, prompt: Prompt, split: str, limit: int | None, rows: Rows) -> list[Question]:
    references: Sequence[Any] = [None] * len(rows) if rows.labels is None else rows.labels
    return [Question(fields, (), answer, None) for fields, answer in zip(_fields(task, rows), references, strict=True)]


def _dialogues(task: Any, prompt: Prompt, split: str, limit: int | None, rows: Rows) -> list[Question]:
    found = []
    for number, dialogue in zip(rows.index, rows.dialogues, strict=True):  # type: ignore[attr-defined]
        if len(dialogue.messages) < 2:
            raise DataError(f"row {number + 1} of '{task.name}' (the first is 1) asks nothing, it is a text without a prompt; measure it with 'datasets'")
        found.append(Question({"prompt": dialogue.prompt}, (), dialogue.completion, None))
    return found
