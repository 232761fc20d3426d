"""Calibration: is a model right as often as it is sure? Reliability bins, the expected error, temperature.

Guo et al. 2017, "On Calibration of Modern Neural Networks", arxiv.org/abs/1706.04599: section 2 for the bins and the
expected calibration error (equation 3), section 4.2 for temperature scaling. Confidences are those of the model as it
is, at temperature 1. The scaled error is measured fairly: the temperature for each half of the examples is fitted on
the other half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

BINS = 15
"""Of equal width. Guo et al. use 15."""
LOWEST, HIGHEST = 0.05, 20.0
"""Between these a temperature is looked for."""
FEWEST = 20
"""Examples that a temperature is fitted on at least."""
Floats = NDArray[np.float64]


def softmax(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    """Probabilities along the last axis."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    probabilities: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


def reliability(confidence: Floats, right: NDArray[np.bool_], bins: int = BINS) -> list[dict[str, float]]:
    """Of each bin that is not empty: its ends, how many examples, their mean confidence, and the share that is
    right."""
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)  # (low, high], as in the paper
    filled = []
    for number in np.unique(place):
        mine = place == number
        filled.append(
            {
                "low": float(number / bins),
                "high": float((number + 1) / bins),
                "examples": int(mine.sum()),
                "confidence": float(confidence[mine].mean()),
                "accuracy": float(right[mine].mean()),
            }
        )
    return filled


def expected_error(confidence: Floats, right: NDArray[np.bool_], bins: int = BINS) -> float:
    """ECE: the mean over the examples of how far their bin's confidence is from its accuracy."""
    each = reliability(confidence, right, bins)
    return sum(part["examples"] * abs(part["confidence"] - part["accuracy"]) for part in each) / len(confidence)


def calibration(logits: ArrayLike, labels: ArrayLike) -> dict[str, Any]:
    """Everything about logits (examples, classes) and true classes (examples,), as it stands in `details.json`."""
    logits, labels = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    chances = softmax(logits)
    confidence, right = chances.max(axis=1), chances.argmax(axis=1) == labels
    figures: dict[str, Any] = {
        "temperature": 1.0,
        "ece": expected_error(confidence, right),
        "confidence": float(confidence.mean()),
        "accuracy": float(right.mean()),
        "nll": _nll(logits, labels, 1.0),
        "brier": float(((chances - np.eye(chances.shape[1])[labels]) ** 2).sum(axis=1).mean()),
        "bins": reliability(confidence, right),
    }
    if len(labels) >= 2 * FEWEST:
        figures["scaled"] = _scaled(logits, labels)
    return figures


def _scaled(logits: Floats, labels: NDArray[np.integer]) -> dict[str, float]:
    """The temperature that fits, and the error with it: each half with the temperature of the other."""
    halves = np.arange(len(labels)) % 2 == 0
    fitted = [best_temperature(logits[~half], labels[~half]) for half in (halves, ~halves)]
    chances = np.empty_like(logits)
    for half, temperature in zip((halves, ~halves), fitted, strict=True):
        chances[half] = softmax(logits[half], temperature)
    return {
        "temperature": best_temperature(logits, labels),
        "ece": expected_error(chances.max(axis=1), chances.argmax(axis=1) == labels),
    }


def best_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """The temperature with the least negative log-likelihood, to three digits: it has one minimum, found by golden
    section.

    Kiefer 1953, "Sequential minimax search for a maximum".
    """
    logits, labels = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    low, high = np.log(LOWEST), np.log(HIGHEST)
    golden = (np.sqrt(5) - 1) / 2
    while high - low > 5e-4:
        one, two = high - golden * (high - low), low + golden * (high - low)
        if _nll(logits, labels, float(np.exp(one))) <= _nll(logits, labels, float(np.exp(two))):
            high = two
        else:
            low = one
    return float(np.exp((low + high) / 2))


def _nll(logits: Floats, labels: NDArray[np.integer], temperature: float) -> float:
    """Mean negative log-likelihood of the true classes, in nats."""
    scaled = logits / temperature
    top = scaled.max(axis=1)
    total = top + np.log(np.exp(scaled - top[:, None]).sum(axis=1))
    return float((total - scaled[np.arange(len(labels)), labels]).mean())
