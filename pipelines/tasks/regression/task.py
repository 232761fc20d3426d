"""Regression: texts or pairs of texts, and a column of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from pipelines.core.config import ConfigIssue
from pipelines.core.interfaces import Head, HeadKind
from pipelines.data.references import DataPath
from pipelines.tasks.base import (
    Column,
    LabelledTask,
    PromptForm,
    TaskExample,
    TaskKind,
    check_columns_differ,
    inline_places,
    is_missing,
)
from pipelines.tasks.subject import auxiliary_lm_issues

if TYPE_CHECKING:
    from datasets import Dataset

    from pipelines.core.recipe import Recipe
    from pipelines.tasks.subject import Subject


@dataclass(frozen=True)
class RegressionTask(LabelledTask):
    """A task whose labels are numbers."""

    @property
    def head(self) -> Head:
        """A head with one output."""
        return Head("sequence_classification")

    def _read_labels(self, data: Dataset, index: Sequence[int], described: str) -> Sequence[float]:
        cells = data[self.label][:]
        return [self._number(cell, number, described) for number, cell in zip(index, cells, strict=True)]

    def _number(self, cell: Any, number: int, described: str) -> float:
        if is_missing(cell):
            self._refuse(described, number, f"has no number in the column '{self.label}'")
        try:
            value = float(cell)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            given = f"{str(cell)[:40]!r} in the column '{self.label}'"
            self._refuse(described, number, f"holds {given}, must be a finite number")
        return value


class Regression(TaskKind):
    """Which number a text, or a pair of texts, is given."""

    head_kind: ClassVar[HeadKind] = "sequence_classification"
    prompt_form: ClassVar[PromptForm | None] = "numbers"
    labels_texts: ClassVar[bool] = True
    takes_input_format: ClassVar[bool] = True
    stage_keys: ClassVar[tuple[str, ...]] = ("pooling",)
    outputs: ClassVar[str | None] = "a number"
    unnamed_columns: ClassVar[tuple[str, ...] | None] = ("text",)
    kind: Literal["regression"]
    columns: tuple[Column, ...] = Field(min_length=1, max_length=2)
    """The column of the text, or the two columns of a pair."""
    label: Column
    """The column of the numbers."""
    train: DataPath
    """The training rows: a file, folder or pattern, or a data set's name."""
    validation: DataPath | None = None
    """The rows that scores are measured on. Default: 10 % of `train`, at most 2,000 rows, which are not learnt from."""
    test: DataPath | None = None
    """Rows to predict; they need no numbers."""
    name: str | None = None
    """The configuration, where `train`, `validation` and `test` name a data set that has several."""

    @model_validator(mode="after")
    def _columns_fit(self) -> Regression:
        check_columns_differ(self.columns, self.label)
        return self

    def task(self, name: str) -> LabelledTask:
        """The task under that name."""
        return RegressionTask(
            name=name,
            kind=self.kind,
            columns=self.columns,
            label=self.label,
            metrics=("pearson", "spearmanr"),
            places=inline_places(self.train, self.validation, self.test, self.name),
        )

    @classmethod
    def task_class(cls) -> type[LabelledTask]:
        return RegressionTask

    @classmethod
    def answers_with(cls, outputs: int) -> bool:
        return outputs == 1

    @classmethod
    def example(cls) -> TaskExample:
        rows = [{"text": f"sentence {n}", "score": n + 0.25} for n in range(10)]
        return {"columns": ["text"], "label": "score"}, rows

    @classmethod
    def training_issues(cls, subject: Subject, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        yield from auxiliary_lm_issues(subject, recipe)
