"""How far a score can be trusted: percentile bootstrap intervals.

Efron & Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3: draw as many examples as there are, with
replacement, score them, and repeat; the middle 95 % of those scores is the interval. It says what another sample of
test examples might have given, not what another training run might.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.protocols import Score
from pipelines.registry import METRICS

RESAMPLES = 1000
LEVEL = 0.95


def intervals(
    score: Score,
    logits: NDArray[Any],
    labels: NDArray[Any],
    seed: int,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> dict[str, tuple[float, float]]:
    """Lower and upper end of the interval of each score that `score` gives, the same for the same seed."""
    random = np.random.default_rng(seed)
    draws: dict[str, list[float]] = {}
    for _ in range(resamples):
        drawn = random.integers(len(labels), size=len(labels))
        for name, value in score(logits[drawn], labels[drawn]).items():
            draws.setdefault(name, []).append(value)
    tail = (1 - level) / 2
    ends = {name: np.quantile(values, [tail, 1 - tail]) for name, values in draws.items()}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


def corpus_intervals(
    metrics: Iterable[str], texts: Any, references: Any, seed: int, resamples: int = RESAMPLES, level: float = LEVEL
) -> dict[str, tuple[float, float]]:
    """The same for metrics of whole corpora, such as BLEU, which are computed from sums of counts.

    Each example is counted once, and a resample is how often it takes each example: all sums are one product.
    """
    random = np.random.default_rng(seed)
    drawn = random.integers(len(references), size=(resamples, len(references)))
    times = np.stack([np.bincount(row, minlength=len(references)) for row in drawn])  # (resamples, examples)
    tail = (1 - level) / 2
    ends: dict[str, tuple[float, float]] = {}
    for metric in metrics:
        module = import_module(METRICS.module(metric))
        drawn_scores = [module.of_counts(sums) for sums in times @ module.counts(texts, references)]
        for name in drawn_scores[0]:
            low, high = np.quantile([scores[name] for scores in drawn_scores], [tail, 1 - tail])
            ends[name] = float(low), float(high)
    return ends
