"""How well scores tell the better of two answers: accuracy, calibration, and a histogram.

The chance that the chosen answer is preferred is σ(chosen - rejected), Bradley & Terry 1952, "Rank analysis of
incomplete block designs: the method of paired comparisons".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipelines.core.files import JSONObject

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


def meaning(settings: JSONObject) -> list[str]:
    """What a reader should know of the number that a reward model gives, as its `reward.json` tells it."""
    reading = settings["reading"]
    prompt = (
        "" if reading.get("max_prompt_length") is None else f", at most {reading['max_prompt_length']} in the prompt"
    )
    told = [
        "The number is a score without a scale of its own. Only differences between answers to the same prompt mean "
        "something: the model takes answer a to be preferred to answer b with the probability 1 / (1 + exp(b - a)) of "
        f"their scores (Bradley and Terry 1952). It reads {reading['max_length']} tokens of a prompt and its "
        f"answer{prompt}; `reward.json` says how. `accuracy` is the pairwise accuracy: the share of pairs whose "
        "preferred answer has the higher score, of which a coin gets half. As the reward of a policy the number is "
        "trusted only near the answers that it was trained on: a policy that is trained long enough finds answers that "
        "score high and are not good."
    ]
    for name, what in (
        ("held_out", "pairs that were set aside in training"),
        ("train", "pairs that it was trained on"),
    ):
        if figures := settings.get(name):
            told.append(
                f"On {figures['pairs']:,} {what}: accuracy {figures['accuracy']:.4f}, expected calibration error "
                f"{figures['calibration_error']:.3f} in 15 bins."
            )
    told.append(
        f"Scores of training answers have the mean {settings['mean']:.4g} and the standard deviation "
        f"{settings['std']:.4g}."
    )
    return told


def _differences(scores: object) -> NDArray[np.float64]:
    values = np.asarray(scores, dtype=np.float64)
    differences: NDArray[np.float64] = values[:, 0] - values[:, 1]
    return differences
