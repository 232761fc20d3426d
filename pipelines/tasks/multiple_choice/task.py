"""Multiple choice: the best of several options, with or without a text that they are about.

What the model reads for each option is the context and `question option`, as two texts (Zellers et al. 2018, "SWAG",
section 5, arxiv.org/abs/1808.05326; Devlin et al. 2019, section 4.4); without a context, the question and the option.
Where a question has a gap (`blank`), the option is put into it instead, as BERT and its followers do on RACE.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from pipelines.core.config import ConfigIssue, ConfigIssues, show
from pipelines.core.files import JSONObject
from pipelines.core.interfaces import FirstRecipe, Head, HeadKind, Rows
from pipelines.data.references import DataPath
from pipelines.data.row_counts import list_length
from pipelines.tasks.base import (
    Column,
    LabelledTask,
    PromptForm,
    TaskExample,
    TaskKind,
    column_of,
    holds,
    inline_places,
    is_missing,
)
from pipelines.tasks.known import stored
from pipelines.tasks.subject import no_auxiliary_lm

if TYPE_CHECKING:
    from datasets import Dataset

    from pipelines.core.recipe import Recipe
    from pipelines.tasks.subject import Subject

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""What options are called."""


@dataclass(frozen=True)
class ChoiceRows(Rows):
    """Questions with options. `labels` are the numbers of the right options, from 0.

    `texts` are what all options of a row have in common (the context, else the question), `pairs` is None, and
    `options` hold what the model reads beside it for each option.
    """

    options: Sequence[Sequence[str]] = ()

    @property
    def choices(self) -> int:
        """Options of each question."""
        return len(self.options[0]) if self.options else 0


@dataclass(frozen=True)
class ChoiceTask(LabelledTask):
    """A task whose answers are one of several options, as many in every row."""

    option_columns: tuple[str, ...] = ()
    """One column of lists, or a column for each option."""
    context: str | None = None
    blank: str | None = None
    first: int = 0
    """The number of the first option, where answers are numbers."""

    @cached_property
    def head(self) -> Head:
        """The head the task is learnt with."""
        return Head("multiple_choice")

    def rows(self, split: str, limit: int | None = None) -> ChoiceRows:
        """The rows of a split, the first `limit` of them. Raises DataError."""
        data, index, described = self._first(split, limit)
        options = self._options(data, index, described)
        contexts = None if self.context is None else self._texts(data, self.context, index, described)
        questions = self._texts(data, self._question(), index, described)
        labels = self._answers(data, options, index, split, described)
        if contexts is None:
            return ChoiceRows(questions, None, labels, index, options)
        marked = [
            [self._joined(question, option) for option in row] for question, row in zip(questions, options, strict=True)
        ]
        return ChoiceRows(contexts, None, labels, index, marked)

    def _question(self) -> str:
        return next(column for column in self.columns if column != self.context and column not in self.option_columns)

    def _joined(self, question: str, option: str) -> str:
        """What is asked about an option, as one text."""
        if self.blank is not None and self.blank in question:
            return question.replace(self.blank, option)
        return f"{question} {option}"

    def _options(self, data: Dataset, index: Sequence[int], described: str) -> list[list[str]]:
        if len(self.option_columns) > 1:
            columns = [self._texts(data, column, index, described) for column in self.option_columns]
            return [list(row) for row in zip(*columns, strict=True)]
        column = self.option_columns[0]
        rows: list[list[str]] = data[column][:]
        for number, row in zip(index, rows, strict=True):
            if not isinstance(row, list) or not all(isinstance(option, str) and option.strip() for option in row):
                self._refuse(
                    described,
                    number,
                    f"holds {str(row)[:40]!r} in the column '{column}', must be a list of texts, none empty",
                )
            if len(row) < 2:
                self._refuse(
                    described, number, f"has {len(row)} options in the column '{column}', must have at least two"
                )
            if len(row) != len(rows[0]):
                self._refuse(
                    described,
                    number,
                    f"has {len(row)} options where row {index[0] + 1} has {len(rows[0])}; all questions of a task "
                    "have as many",
                    "leave the row out, or make it a task of its own",
                )
        return rows

    def _answers(
        self, data: Dataset, options: Sequence[Sequence[str]], index: Sequence[int], split: str, described: str
    ) -> list[int] | None:
        if self.label not in data.column_names:
            return None
        cells = data[self.label][:]
        if not self._needs_labels(split) and all(is_missing(cell) for cell in cells):
            return None
        return [
            self._answer(cell, row, number, described) for cell, row, number in zip(cells, options, index, strict=True)
        ]

    def _answer(self, cell: object, options: Sequence[str], number: int, described: str) -> int:
        """The number of the right option, from 0: by letter, by number, or by its text."""
        count, last = len(options), len(options) - 1 + self.first
        if is_missing(cell):
            self._refuse(described, number, f"has no answer in the column '{self.label}'")
        text = str(cell).strip()
        if isinstance(cell, str) and len(text) == 1 and text.upper() in LETTERS[:count]:
            return LETTERS.index(text.upper())
        if text.isdecimal() and not isinstance(cell, bool) and 0 <= int(text) - self.first < count:
            return int(text) - self.first
        if not isinstance(cell, str) or list(options).count(text) != 1:
            self._refuse(
                described,
                number,
                f"has the answer {text[:40]!r} in the column '{self.label}', must be a letter from A to "
                f"{LETTERS[count - 1]}, a number from {self.first} to {last}, or one of the row's options",
            )
        return list(options).index(text)


def _names(value: object) -> Any:
    """One column of lists, or several columns."""
    if isinstance(value, str) and value:
        return (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) and name for name in value):
        if len(set(value)) < len(value):
            raise ConfigIssues([((), f"is {show(list(value))}, which names a column twice")])
        return tuple(value)
    raise ConfigIssues(
        [((), f"is {show(value)}, must be the column of lists of options, or a list of two or more columns")]
    )


QUESTIONS = ("question", "question_stem", "goal", "sentence", "ctx", "startphrase", "sent1", "query", "prompt")
CONTEXTS = ("article", "passage", "context", "support")
ANSWERS = ("answer", "answerkey", "label", "correct", "correct_answer", "gold")
OPTIONS = ("options", "choices", "endings", "alternatives")
OPTION = re.compile(r"(option|choice|ending|sol|alternative)[ _-]?([0-9]|[a-f])", re.IGNORECASE)
"""What columns of such files are often called; `option_a`, `sol1` are columns of one option each."""


class MultipleChoice(TaskKind):
    """Which of several options is the answer to a question."""

    head_kind: ClassVar[HeadKind] = "multiple_choice"
    prompt_form: ClassVar[PromptForm | None] = "choices"
    takes_input_format: ClassVar[bool] = True
    stage_keys: ClassVar[tuple[str, ...]] = ("pooling",)
    outputs: ClassVar[str | None] = "one of several options"
    column_counts: ClassVar[tuple[int, ...]] = ()
    uncounted: ClassVar[str | None] = "a question is counted as one sequence, but takes as many as it has options"
    smooths_labels: ClassVar[bool] = True
    first_recipe: ClassVar[FirstRecipe] = FirstRecipe(baselines=("majority",), evaluate=("max_eval_samples: 500",))
    rows_hold: ClassVar[str] = "a question, a list of options (or a column for each), and the right one"
    kind: Literal["multiple_choice"]
    question: Column = "question"
    """The column of the questions, or of the beginnings that options continue."""
    options: Annotated[
        tuple[str, ...],
        BeforeValidator(_names),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 2}]}),
    ] = ("options",)
    """The column that holds a list of texts, as many in every row, or a list of columns with one option each."""
    answer: Column = "answer"
    """The column of the right options: a letter (`A`), a number, or the option's text."""
    context: Column | None = None
    """The column of the texts that the questions are about, if there are such."""
    blank: str | None = Field(None, min_length=1)
    """What stands in a question for the option, such as `_`. Default: the option follows the question."""
    first: Literal[0, 1] = 0
    """The number of the first option, where answers are numbers."""
    train: DataPath
    """The training rows: a file, folder or pattern, or a data set's name."""
    validation: DataPath | None = None
    """The rows that scores are measured on. Default: 10 % of `train`, at most 2,000 rows, which are not learnt from."""
    test: DataPath | None = None
    """Rows to predict; they need no answers."""
    name: str | None = Field(None, min_length=1)
    """The configuration, where `train`, `validation` and `test` name a data set that has several."""

    @model_validator(mode="after")
    def _columns_fit(self) -> MultipleChoice:
        named: Mapping[str, str | None] = {"question": self.question, "answer": self.answer, "context": self.context}
        used = [(key, column) for key, column in named.items() if column is not None]
        for place, (key, column) in enumerate(used):
            if column in (*self.options, *(earlier for _, earlier in used[:place])):
                raise ConfigIssues(
                    [((key,), f"is '{column}', which is named twice; give each key a column of its own")]
                )
        if self.blank is not None and self.context is None:
            raise ConfigIssues(
                [(("blank",), "puts options into a question about a context; name the 'context', or leave it out")]
            )
        return self

    def task(self, name: str) -> ChoiceTask:
        """The task under that name."""
        return choice_task(
            name,
            self.question,
            self.options,
            self.answer,
            self.context,
            self.blank,
            self.first,
            inline_places(self.train, self.validation, self.test, self.name),
        )

    @classmethod
    def sequences(cls, task: LabelledTask) -> int | None:
        assert isinstance(task, ChoiceTask)
        if len(task.option_columns) > 1:
            return len(task.option_columns)
        found = stored(task, next(iter(task.places)))
        return None if found is None else list_length(*found, task.option_columns[0])

    @classmethod
    def columns_of_a_sequence(cls, task: LabelledTask) -> tuple[str, ...]:
        """What all options share, and one of them."""
        assert isinstance(task, ChoiceTask)
        return (*(each for each in task.columns if each not in task.option_columns), task.option_columns[0])

    @classmethod
    def recognise(cls, rows: Sequence[JSONObject], label: str | None = None) -> JSONObject | None:
        question, context = column_of(QUESTIONS, rows), column_of(CONTEXTS, rows)
        answer = label or column_of(ANSWERS, rows)
        options = [name for name in rows[0] if OPTION.fullmatch(name.strip())]
        lists = next((name for name in rows[0] if name.lower() in OPTIONS), None)
        if lists is not None:
            dotted = holds(rows, lists, lambda cell: isinstance(cell, Mapping) and isinstance(cell.get("text"), list))
            given = [row[lists]["text"] if dotted else row[lists] for row in rows if row[lists]]
            options = [f"{lists}.text" if dotted else lists]
            if not given or not all(isinstance(each, list) for each in given):
                return None
        if question is None or answer is None or not options or (lists is None and len(options) < 2):
            return None
        if lists is not None and len(counts := {len(each) for each in given}) > 1:
            raise ValueError(
                f"has from {min(counts)} to {max(counts)} options a row in '{lists}', and a model chooses among as "
                "many in every row; leave the other rows out"
            )
        numbers = {str(row[answer]).strip() for row in rows}
        count = len(given[0]) if lists is not None else len(options)
        keys: dict[str, Any] = {"question": question, "options": options, "answer": answer}
        if context is not None:
            keys["context"] = context
            if any("_" in str(row[question]) for row in rows):
                keys["blank"] = "_"
        if str(count) in numbers and all(each.isdecimal() for each in numbers):
            keys["first"] = 1
        return keys

    @classmethod
    def example(cls) -> TaskExample:
        return {}, [
            {"question": f"Which is number {n}?", "options": [str(n), "none"], "answer": "AB"[n % 2]} for n in range(10)
        ]

    @classmethod
    def training_issues(cls, subject: Subject, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        yield from no_auxiliary_lm(subject, name)

    @classmethod
    def texts(cls, rows: Any) -> Iterator[str]:
        """Questions, contexts and every option."""
        yield from super().texts(rows)
        for options in rows.options:
            yield from options


def choice_task(
    name: str,
    question: str,
    options: tuple[str, ...],
    answer: str,
    context: str | None,
    blank: str | None,
    first: int,
    places: Any,
) -> ChoiceTask:
    """A task of choosing."""
    return ChoiceTask(
        name=name,
        kind="multiple_choice",
        columns=(*([] if context is None else [context]), question, *options),
        label=answer,
        metrics=("accuracy",),
        places=places,
        option_columns=options,
        context=context,
        blank=blank,
        first=first,
    )
