"""Accuracy: the fraction of examples whose class was predicted. Metric of GLUE's SST-2, MNLI, QNLI, RTE and WNLI."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pipelines.metrics.base import paired_labels


def compute(predictions: ArrayLike, references: ArrayLike, classes: int | None = None) -> dict[str, float]:
    """`{"accuracy": …}` in 0 … 1. The number of `classes` makes no difference to it."""
    predicted, true = paired_labels(predictions, references)
    return {"accuracy": float(np.mean(predicted == true))}


@cache
def _metric() -> type:
    from pipelines.metrics.base import metric_module

    return metric_module(__name__, "Accuracy", compute, "int64", __doc__)


def __getattr__(name: str) -> Any:
    """`Accuracy`, the same as an `evaluate.Metric`."""
    if name == "Accuracy":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
