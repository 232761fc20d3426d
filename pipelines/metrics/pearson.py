"""Pearson's correlation coefficient between predicted and true numbers. Metric of GLUE's STS-B.

Pearson 1895, "Note on regression and inheritance in the case of two parents". Where all predictions, or all
references, are one number (a single example included), it would be 0 / 0 and is defined as 0.0: NaN in a score file
could be neither compared nor required.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipelines.metrics.base import paired_numbers


def compute(predictions: ArrayLike, references: ArrayLike) -> dict[str, float]:
    """`{"pearson": …}` in -1 … 1; 0.0 where predictions or references are constant."""
    return {"pearson": correlation(*paired_numbers(predictions, references))}


def correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Pearson's r of two lists of the same length; 0.0 where one of them is constant."""
    if x.min() == x.max() or y.min() == y.max():
        return 0.0
    x, y = _direction(x), _direction(y)
    return float(np.clip(x @ y, -1.0, 1.0))


def _direction(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The centred values as a vector of length 1."""
    scaled = values / np.abs(values).max()  # before anything is squared: no overflow, no underflow
    centred: NDArray[np.float64] = scaled - scaled.mean()
    length = float(np.linalg.norm(centred))
    return centred / length if length > 0 else centred


@cache
def _metric() -> type:
    from pipelines.metrics.base import metric_module

    return metric_module(__name__, "Pearson", compute, "float64", __doc__)


def __getattr__(name: str) -> Any:
    """`Pearson`, the same as an `evaluate.Metric`."""
    if name == "Pearson":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
