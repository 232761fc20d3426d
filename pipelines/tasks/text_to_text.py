"""Any labelled task as text to text: the question is written out, the answer is a word or a number.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
arxiv.org/abs/1910.10683, section 2.4 and appendix D: `mrpc sentence1: … sentence2: …` becomes `equivalent`; numbers are
rounded to the nearest 0.2 and written as `3.8`. A written text that is no class of the task counts as a wrong answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipelines.core.interfaces import Head, Rows
from pipelines.tasks.base import LabelledTask, SplitLocation

STEP = 0.2
"""Numbers are rounded to multiples of this before they are written."""
NO_NUMBER = -1.0
"""What a text that is no number is scored as: T5's own default."""


@dataclass(frozen=True)
class AsText:
    """A task on texts or pairs whose answers are written. It has the task's name, metrics and splits."""

    task: LabelledTask

    kind: Literal["seq2seq"] = "seq2seq"
    trained_by: str | None = None
    labels: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """The task's own name."""
        return self.task.name

    @property
    def head(self) -> Head:
        """A head that writes."""
        return Head("seq2seq_lm")

    @property
    def metrics(self) -> tuple[str, ...]:
        """The task's own."""
        return self.task.metrics

    @property
    def columns(self) -> tuple[str, ...]:
        """The task's own."""
        return self.task.columns

    @property
    def label(self) -> str:
        """The task's own."""
        return self.task.label

    @property
    def places(self) -> Mapping[str, SplitLocation]:
        """The task's own."""
        return self.task.places

    @property
    def evaluation_splits(self) -> Mapping[str, str]:
        """The task's own."""
        return self.task.evaluation_splits

    @property
    def prefix(self) -> str:
        """The word that a question begins with: `mrpc` of `glue/mrpc`."""
        return self.task.name.rpartition("/")[2]

    def content(self) -> dict[str, str]:
        """The task's own."""
        return self.task.content()

    def rows(self, split: str, limit: int | None = None) -> Rows:
        """The rows of a split as texts, and the words or numbers that they are to become. Raises DataError."""
        rows = self.task.rows(split, limit)
        names = [column.rpartition(".")[2] for column in self.task.columns]
        pairs = rows.pairs if rows.pairs is not None else [None] * len(rows)
        texts = [self._question(names, first, second) for first, second in zip(rows.texts, pairs, strict=True)]
        return Rows(
            texts, None, None if rows.labels is None else [self.answer(label) for label in rows.labels], rows.index
        )

    def _question(self, names: Sequence[str], first: str, second: str | None) -> str:
        question = f"{self.prefix} {names[0]}: {first}"
        return question if second is None else f"{question} {names[1]}: {second}"

    def answer(self, label: Any) -> str:
        """What is to be written: the name of a class, or a number rounded to the nearest 0.2."""
        if names := self.task.head.labels:
            return names[int(label)]
        return f"{round(float(label) / STEP) * STEP:.1f}"

    def read(self, written: Sequence[str], references: Sequence[str]) -> tuple[list[Any], list[Any], int]:
        """(predictions, labels, how many of the written texts are no answer at all), as the task's metrics take them.

        A text that names no class becomes a class that the reference is not.
        """
        if not self.task.head.labels:
            numbers = [_number(text) for text in written]
            wrong = sum(number is None for number in numbers)
            return (
                [NO_NUMBER if number is None else number for number in numbers],
                [float(text) for text in references],
                wrong,
            )
        ids = {name: position for position, name in enumerate(self.task.head.labels)}
        labels = [ids[text] for text in references]
        classes = [ids.get(" ".join(text.split())) for text in written]
        predictions = [
            (label + 1) % len(ids) if predicted is None else predicted
            for predicted, label in zip(classes, labels, strict=True)
        ]
        return predictions, labels, sum(predicted is None for predicted in classes)


def _number(text: str) -> float | None:
    try:
        number = float(text.strip())
    except ValueError:
        return None
    return number if abs(number) < 1e6 else None
