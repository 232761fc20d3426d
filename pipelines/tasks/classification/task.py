"""Classification: texts or pairs of texts, and a column of classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from pipelines.core.config import ConfigIssue, ConfigIssues
from pipelines.core.interfaces import FirstRecipe, HeadKind
from pipelines.data.references import DataPath
from pipelines.tasks.base import (
    ClassNames,
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


class Classification(TaskKind):
    """Which of several classes a text, or a pair of texts, belongs to."""

    head_kind: ClassVar[HeadKind] = "sequence_classification"
    prompt_form: ClassVar[PromptForm | None] = "classes"
    labels_texts: ClassVar[bool] = True
    takes_input_format: ClassVar[bool] = True
    stage_keys: ClassVar[tuple[str, ...]] = ("class_weights", "pooling")
    smooths_labels: ClassVar[bool] = True
    finds_labels: ClassVar[bool] = True
    unnamed_columns: ClassVar[tuple[str, ...] | None] = ("text",)
    first_recipe: ClassVar[FirstRecipe] = FirstRecipe(baselines=("majority", "naive_bayes"))
    kind: Literal["classification"]
    columns: tuple[Column, ...] = Field(min_length=1, max_length=2)
    """The column of the text, or the two columns of a pair."""
    label: Column
    """The column of the classes: texts, whole numbers or truth values."""
    labels: ClassNames = None
    """Class names in the order of their ids. Default: those in the training rows, in natural order."""
    train: DataPath
    """The training rows: a file, folder or pattern, or a data set's name."""
    validation: DataPath | None = None
    """The rows that scores are measured on. Default: 10 % of `train`, at most 2,000 rows, which are not learnt from."""
    test: DataPath | None = None
    """Rows to predict; they need no labels."""
    name: str | None = None
    """The configuration, where `train`, `validation` and `test` name a data set that has several."""

    @model_validator(mode="after")
    def _labels_fit(self) -> Classification:
        check_columns_differ(self.columns, self.label)
        if self.labels is not None and (len(self.labels) < 2 or len(set(self.labels)) < len(self.labels)):
            raise ConfigIssues(
                [(("labels",), f"is [{', '.join(self.labels)}], must name at least two classes, each once")]
            )
        return self

    def task(self, name: str) -> LabelledTask:
        """The task under that name."""
        return LabelledTask(
            name=name,
            kind=self.kind,
            columns=self.columns,
            label=self.label,
            labels=self.labels,
            metrics=("accuracy", "f1"),
            places=inline_places(self.train, self.validation, self.test, self.name),
        )

    @classmethod
    def answers_with(cls, outputs: int) -> bool:
        return outputs != 1

    @classmethod
    def example(cls) -> TaskExample:
        rows = [{"text": f"sentence {n}", "class": "yes" if n % 2 else "no"} for n in range(10)]
        return {"columns": ["text"], "label": "class"}, rows

    @classmethod
    def training_issues(cls, subject: Subject, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        yield from auxiliary_lm_issues(subject, recipe)
