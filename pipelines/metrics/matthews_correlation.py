"""Matthews' correlation coefficient between predicted and true classes. Metric of GLUE's CoLA.

Matthews 1975, "Comparison of the predicted and observed secondary structure of T4 phage lysozyme"; for any number of
classes the R_K of Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation coefficient",
equation 8. Where all predictions, or all references, are one class, it would be 0 / 0 and is defined as 0.0: such a
guesser knows nothing. scikit-learn does the same.
"""

from __future__ import annotations

from functools import cache
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pipelines.metrics.base import confusion, paired_labels


def compute(predictions: ArrayLike, references: ArrayLike, classes: int | None = None) -> dict[str, float]:
    """`{"matthews_correlation": …}` in -1 … 1; 0.0 where predictions or references are constant."""
    counts = confusion(*paired_labels(predictions, references), classes).astype(np.float64)
    predicted, true, examples = counts.sum(axis=0), counts.sum(axis=1), counts.sum()
    together = float(np.trace(counts) * examples - predicted @ true)
    of_predicted = float(examples**2 - predicted @ predicted)
    of_true = float(examples**2 - true @ true)
    if of_predicted == 0 or of_true == 0:
        return {"matthews_correlation": 0.0}
    return {"matthews_correlation": min(1.0, max(-1.0, together / sqrt(of_predicted) / sqrt(of_true)))}


@cache
def _metric() -> type:
    from pipelines.metrics.base import metric_module

    return metric_module(__name__, "MatthewsCorrelation", compute, "int64", __doc__)


def __getattr__(name: str) -> Any:
    """`MatthewsCorrelation`, the same as an `evaluate.Metric`."""
    if name == "MatthewsCorrelation":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
