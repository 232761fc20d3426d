"""How well scores tell the better of two answers: accuracy, calibration, and a histogram.

The chance that the chosen answer is preferred is σ(chosen - rejected), Bradley & Terry 1952, "Rank analysis of
incomplete block designs: the method of paired comparisons".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BINS = 20
"""Bars of a histogram."""


def accuracy(scores: object) -> float:
    """The share of pairs (pairs, 2), chosen first, whose chosen answer has the higher score; the same score counts
    half."""
    differences = _differences(scores)
    return float(((differences > 0) + 0.5 * (differences == 0)).mean())


def negative_log_likelihood(scores: object) -> float:
    """The mean of -ln σ(chosen - rejected) over the pairs (pairs, 2), in nats."""
    return float(np.logaddexp(0.0, -_differences(scores)).mean())


def calibration_error(scores: object, bins: int = 15) -> float:
    """How far the model's confidence in the answer that it prefers lies from how often that is the chosen one.

    The expected calibration error of Guo et al. 2017, "On Calibration of Modern Neural Networks", equation 3,
    arxiv.org/abs/1706.04599: bins of equal width, (low, high], weighted by their pairs.
    """
    differences = _differences(scores)
    confidence = 1 / (1 + np.exp(-np.abs(differences)))
    right = (differences > 0) + 0.5 * (differences == 0)
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.abs(np.bincount(place, confidence - right, minlength=bins))
    return float(gaps.sum() / len(differences))


def histogram(scores: object, bins: int = BINS) -> dict[str, list[float]]:
    """How many chosen and rejected answers have a score between each two `edges` (bins + 1,); scores are (pairs, 2)."""
    values = np.asarray(scores, dtype=np.float64)
    low, high = float(values.min()), float(values.max())
    edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
    counts = [np.histogram(values[:, side], edges)[0].tolist() for side in (0, 1)]
    return {"edges": edges.tolist(), "chosen": counts[0], "rejected": counts[1]}


def _differences(scores: object) -> NDArray[np.float64]:
    values = np.asarray(scores, dtype=np.float64)
    differences: NDArray[np.float64] = values[:, 0] - values[:, 1]
    return differences
