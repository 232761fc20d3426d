"""Sequence to sequence: a column of texts, and a column of what they are to become."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from pipelines.core.config import Block, ConfigIssues
from pipelines.data.references import DataPath
from pipelines.tasks.base import Column, Task, inline_places


class Seq2Seq(Block):
    """What a text is to become: its translation, its summary, its correction."""

    kind: Literal["seq2seq"]
    source: Column
    """The column of the texts. `translation.en` is the entry `en` of a column `translation` that holds objects."""
    target: Column
    """The column of what they are to become."""
    train: DataPath
    """The training rows: a file, folder or pattern, or a data set's name."""
    validation: DataPath | None = None
    """The rows that scores are measured on. Default: 10 % of `train`, at most 2,000 rows, which are not learnt from."""
    test: DataPath | None = None
    """Rows to write targets for; they need none."""
    name: str | None = None
    """The configuration, where `train`, `validation` and `test` name a data set that has several."""

    @model_validator(mode="after")
    def _columns_differ(self) -> Seq2Seq:
        if self.source == self.target:
            raise ConfigIssues(
                [(("target",), f"is '{self.target}', the source too: there would be nothing to learn but to copy")]
            )
        return self

    def task(self, name: str) -> Task:
        """The task under that name."""
        return Task(
            name=name,
            kind=self.kind,
            columns=(self.source,),
            label=self.target,
            metrics=("bleu", "chrf"),
            places=inline_places(self.train, self.validation, self.test, self.name),
        )
