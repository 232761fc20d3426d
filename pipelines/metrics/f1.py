"""F1: the harmonic mean of precision and recall. Metric of GLUE's MRPC and QQP.

Two classes: the F1 of class 1, as GLUE scores it. More: the mean over classes, each weighing the same ("macro"), over
those that occur among references or predictions; van Rijsbergen 1979, "Information Retrieval", chapter 7. A class that
is never predicted rightly has F1 0, also where it is neither predicted nor true (0 / 0), as in scikit-learn.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pipelines.metrics.base import confusion, paired_labels


def compute(predictions: ArrayLike, references: ArrayLike, classes: int | None = None) -> dict[str, float]:
    """`{"f1": …}` in 0 … 1, binary for two `classes`, macro beyond; without `classes`, binary if every id is 0 or 1."""
    predicted, true = paired_labels(predictions, references)
    if classes is None and set(np.unique(np.concatenate([predicted, true])).tolist()) <= {0, 1}:
        classes = 2
    counts = confusion(predicted, true, classes)
    right, asked = np.diag(counts), counts.sum(axis=0) + counts.sum(axis=1)  # asked: predicted plus true, per class
    per_class = 2 * right / np.maximum(asked, 1)
    return {"f1": float(per_class[1] if classes == 2 else per_class[asked > 0].mean())}


@cache
def _metric() -> type:
    from pipelines.metrics.base import metric_module

    return metric_module(__name__, "F1", compute, "int64", __doc__)


def __getattr__(name: str) -> Any:
    """`F1`, the same as an `evaluate.Metric`."""
    if name == "F1":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
