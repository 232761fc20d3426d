"""What a model said about questions with options: a logit an option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.data.multiple_choice import LETTERS
from pipelines.errors import DataError, ModelError
from pipelines.evaluation.accuracy import compute as accuracy
from pipelines.evaluation.doubts import constant_prediction
from pipelines.evaluation.predictions import Decided
from pipelines.evaluation.scoring import checked_logits
from pipelines.protocols import Score, Task


@dataclass(frozen=True)
class Chosen(Decided):
    """The best option of each question: `logits` (questions, options), `rows` are ChoiceRows, labels the right options' numbers."""

    def outputs(self, task: Task) -> int:
        return int(self.logits.shape[1])

    def doubt(self, task: Task) -> str | None:
        return constant_prediction(self.benchmark, self.split, self.logits, tuple(LETTERS))

    def table(self) -> Any:
        import pyarrow as pa

        labels = self.labels
        return pa.table(
            {
                **self.columns(),
                "text": pa.array(list(self.rows.texts), pa.string()),
                "options": pa.array([list(row) for row in self.rows.options], pa.list_(pa.string())),  # type: ignore[attr-defined]
                "label": pa.nulls(len(self.rows), pa.int64()) if labels is None else pa.array(labels.astype(np.int64)),
                "prediction": pa.array(self.logits.argmax(axis=1).astype(np.int64)),
                "logits": pa.array(list(self.logits.astype(np.float32)), pa.list_(pa.float32())),
            }
        )


def score_options(task: Task) -> Score:
    """The task's accuracy as a function of logits (questions, options) and the numbers of the right options (questions,)."""
    name = task.name

    def of(logits: Any, labels: Any) -> dict[str, float]:
        logits, labels = np.asarray(logits), np.asarray(labels)
        if logits.ndim != 2:
            raise ModelError(f"'{name}' needs a logit for each option, but the model gives {logits.shape}; evaluate a multiple choice model")
        logits = checked_logits(logits, logits.shape[1], name)
        if len(labels) != len(logits):
            raise DataError(f"'{name}' has {len(logits)} predictions but {len(labels)} labels; they must be as many")
        if len(labels) == 0:
            raise DataError(f"'{name}' has no example to score; choose a split with rows, or raise max_eval_samples")
        wrong = (labels < 0) | (labels >= logits.shape[1])
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(f"'{name}' has the answer {labels[row].item()} in row {row}, but the options are 0 … {logits.shape[1] - 1}")
        return accuracy(logits.argmax(axis=1), labels)

    return of
