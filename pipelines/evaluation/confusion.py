"""The confusion matrix: how often each class was taken for each other one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def confusion(
    predictions: NDArray[np.int64], references: NDArray[np.int64], classes: int | None = None
) -> NDArray[np.int64]:
    """Counts of shape (true class, predicted class).

    With `classes`, rows and columns are the ids 0 … classes - 1 (ValueError for any other id); without, they are the
    ids that occur in either list, in ascending order.
    """
    if classes is None:
        known, both = np.unique(np.concatenate([predictions, references]), return_inverse=True)
        predictions, references = both[: len(predictions)], both[len(predictions) :]
        classes = len(known)
    elif min(predictions.min(), references.min()) < 0 or max(predictions.max(), references.max()) >= classes:
        raise ValueError(f"a class id lies outside 0 … {classes - 1}")
    cells: NDArray[np.int64] = np.bincount(references * classes + predictions, minlength=classes * classes)
    return cells.reshape(classes, classes)
