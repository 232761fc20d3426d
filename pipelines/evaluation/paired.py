"""Predictions and references, checked once for every metric: two lists of the same length, finite, not empty."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def paired_labels(predictions: ArrayLike, references: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both as class ids. Raises ValueError where they are not whole numbers, differ in length, or are empty."""
    predicted, true = _paired(predictions, references)
    for name, values in (("predictions", predicted), ("references", true)):
        if values.dtype.kind not in "iub" and not bool(np.all(values == np.floor(values))):
            raise ValueError(f"{name} must be class ids, which are whole numbers")
    return predicted.astype(np.int64), true.astype(np.int64)


def paired_numbers(predictions: ArrayLike, references: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both as numbers in double precision. Raises ValueError where they differ in length or are empty."""
    predicted, true = _paired(predictions, references)
    return predicted.astype(np.float64), true.astype(np.float64)


def _paired(predictions: ArrayLike, references: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    predicted, true = np.asarray(predictions), np.asarray(references)
    if predicted.ndim != 1 or true.ndim != 1 or len(predicted) != len(true):
        raise ValueError(
            f"predictions and references must be lists of one length, found shapes {predicted.shape} and {true.shape}"
        )
    if len(predicted) == 0:
        raise ValueError("there is no example to score")
    for name, values in (("predictions", predicted), ("references", true)):
        if values.dtype.kind not in "iubf":
            raise ValueError(f"{name} must be numbers, found {values.dtype}")
        if values.dtype.kind == "f" and not bool(np.all(np.isfinite(values))):
            raise ValueError(f"{name} must be finite numbers, found NaN or infinity")
    return predicted, true
