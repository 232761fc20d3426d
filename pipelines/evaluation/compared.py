"""What a model said about pairs of answers: a score for each, by which the better one is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.data import pair_scores
from pipelines.errors import DataError, ModelError
from pipelines.evaluation.intervals import LEVEL, RESAMPLES
from pipelines.evaluation.predictions import Decided
from pipelines.protocols import Score, Task


@dataclass(frozen=True)
class Compared(Decided):
    """Pairs of answers. `logits` are the scores (pairs, 2), the chosen answer's first: their softmax is Bradley and Terry's model."""

    def doubt(self, task: Task) -> str | None:
        if len(self.logits) > 1 and np.ptp(self.logits) == 0:
            return f"{self.benchmark}: the model gives every answer of '{self.split}' the same score; it has not learnt to tell them apart"
        return None

    def table(self) -> Any:
        """Both answers with their scores; `label` is 0, as the first is the better one, and `prediction` the one with the higher score."""
        import pyarrow as pa

        rows: Any = self.rows
        scores = np.asarray(self.logits, dtype=np.float32)
        return pa.table(
            {
                **self.columns(),
                "text": pa.array(list(rows.texts), pa.string()),
                "chosen": pa.array([each.completion for each in rows.chosen], pa.string()),
                "rejected": pa.array([each.completion for each in rows.rejected], pa.string()),
                "score_chosen": pa.array(scores[:, 0]),
                "score_rejected": pa.array(scores[:, 1]),
                "label": pa.nulls(len(rows), pa.int64()) if self.labels is None else pa.array(self.labels),
                "prediction": pa.array(scores.argmax(axis=1).astype(np.int64)),
                "logits": pa.array(list(scores), pa.list_(pa.float32())),
            }
        )


def score_pairs(task: Task) -> Score:
    """The share of pairs whose chosen answer has the higher score; the same score counts half."""

    def of(scores: Any, labels: Any) -> dict[str, float]:
        values = np.asarray(scores)
        if values.ndim != 2 or values.shape[1] != 2:
            raise ModelError(f"'{task.name}' needs two scores a pair, found the shape {values.shape}")
        if len(values) == 0:
            raise DataError(f"'{task.name}' has no pair to score; choose a split with rows, or raise max_eval_samples")
        wrong = ~np.isfinite(values).all(axis=1)
        if wrong.any():
            raise ModelError(
                f"the model gives NaN or infinity for {int(wrong.sum())} of {len(values)} pairs of '{task.name}' (first in row "
                f"{int(wrong.argmax())}): its training diverged, so lower its learning rate"
            )
        return {"accuracy": pair_scores.accuracy(values)}

    return of


def difference(scores: Any, other: Any, seed: int, resamples: int = RESAMPLES, level: float = LEVEL) -> Mapping[str, Any]:
    """How much more accurate `scores` are than `other`, both (pairs, 2) on the same pairs, with a paired bootstrap interval.

    Efron & Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3, the same drawn pairs for both.
    """
    gaps = _credit(scores) - _credit(other)
    drawn = np.random.default_rng(seed).integers(len(gaps), size=(resamples, len(gaps)))
    low, high = np.quantile(gaps[drawn].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return {"difference": float(gaps.mean()), "interval": [float(low), float(high)]}


def _credit(scores: Any) -> NDArray[np.float64]:
    """What each pair adds to the accuracy: 1, 0, or a half."""
    values = np.asarray(scores, dtype=np.float64)
    found: NDArray[np.float64] = (values[:, 0] > values[:, 1]) + 0.5 * (values[:, 0] == values[:, 1])
    return found
