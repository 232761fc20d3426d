"""Spearman's rank correlation between predicted and true numbers. Metric of GLUE's STS-B.

Spearman 1904, "The proof and measurement of association between two things": Pearson's coefficient of the ranks,
where equal numbers share the mean of their ranks. Where all predictions, or all references, are one number, it would
be 0 / 0 and is defined as 0.0.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipelines.metrics.base import paired_numbers
from pipelines.metrics.pearson import correlation


def compute(predictions: ArrayLike, references: ArrayLike) -> dict[str, float]:
    """`{"spearmanr": …}` in -1 … 1; 0.0 where predictions or references are constant."""
    predicted, true = paired_numbers(predictions, references)
    return {"spearmanr": correlation(ranks(predicted), ranks(true))}


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank of each number, from 1; equal numbers share the mean of the ranks they take together."""
    order = np.argsort(values)
    ascending = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ascending[1:] != ascending[:-1]]))  # first of each run of equals
    ends = np.append(starts[1:], len(values))
    result = np.empty(len(values))
    result[order] = np.repeat((starts + 1 + ends) / 2, ends - starts)
    return result


@cache
def _metric() -> type:
    from pipelines.metrics.base import metric_module

    return metric_module(__name__, "Spearmanr", compute, "float64", __doc__)


def __getattr__(name: str) -> Any:
    """`Spearmanr`, the same as an `evaluate.Metric`."""
    if name == "Spearmanr":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
