"""Regression: texts or pairs of texts, and a column of numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from pipelines.core.config import ConfigIssue
from pipelines.core.interfaces import HeadKind
from pipelines.data.references import DataPath
from pipelines.tasks.base import (
    Column,
    LabelledTask,
    PromptForm,
    TaskExample,
    TaskKind,
    check_columns_differ,
    inline_places,
)
from pipelines.tasks.subject import auxiliary_lm_issues

if TYPE_CHECKING:
    from pipelines.core.recipe import Recipe
    from pipelines.tasks.subject import Subject


class Regression(TaskKind):
    """Which number a text, or a pair of texts, is given."""

    head_kind: ClassVar[HeadKind] = "sequence_classification"
    prompt_form: ClassVar[PromptForm | None] = "numbers"
    labels_texts: ClassVar[bool] = True
    takes_input_format: ClassVar[bool] = True
    stage_keys: ClassVar[tuple[str, ...]] = ("pooling",)
    outputs: ClassVar[str | None] = "a number"
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
        return LabelledTask(
            name=name,
            kind=self.kind,
            columns=self.columns,
            label=self.label,
            metrics=("pearson", "spearmanr"),
            places=inline_places(self.train, self.validation, self.test, self.name),
        )

    @classmethod
    def example(cls) -> TaskExample:
        rows = [{"text": f"sentence {n}", "score": n + 0.25} for n in range(10)]
        return {"columns": ["text"], "label": "score"}, rows

    @classmethod
    def training_issues(cls, subject: Subject, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        yield from auxiliary_lm_issues(subject, recipe)
