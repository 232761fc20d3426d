"""How far a mean over seeds, and the difference of two such means, can be trusted.

Two things could have come out otherwise: which examples were in the test, and which seeds the training had. Examples
are drawn again with replacement, the same ones for both methods (the paired bootstrap of Efron and Tibshirani 1993,
chapter 8, and of Koehn 2004, aclanthology.org/W04-3250). Seeds are too few to draw from: three of them drawn with
replacement give intervals that are much too narrow. The mean over S seeds is instead moved by draws from Student's t
with S - 1 degrees of freedom times its standard error, sd / sqrt(S), which for a test without chance of its own is
exactly Student's interval. With a single seed the interval knows only of the examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipelines.evaluation.significance.bootstrap import p_of_draws

Floats = NDArray[np.float64]
RESAMPLES = 1000
LEVEL = 0.95
FINE = 100
"""Draws of the seeds' noise for each resample where a p-value is counted: none is below 2 / (RESAMPLES * FINE)."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval."""

    value: float
    low: float
    high: float
    p: float | None = None
    """Of a difference: the two-sided p-value that goes with the interval, not corrected for other comparisons."""

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero: a difference outside the noise."""
        return self.low > 0 or self.high < 0


def mean_interval(scores: Sequence[float], draws: Sequence[Floats] | None, seed: int, level: float = LEVEL) -> Estimate | None:
    """The mean of one score a training seed, with its interval.

    `draws` holds for each seed its score on resampled examples (resamples,), the same examples for every seed; None
    where scores could not be resampled. Returns None when there is nothing that could vary: one seed and no draws.
    """
    values = np.asarray(scores, dtype=np.float64)
    if draws is None and len(values) < 2:
        return None
    resampled = np.full(RESAMPLES, values.mean()) if draws is None else np.mean(np.stack(list(draws)), axis=0)
    moved = resampled + _seed_noise(values, len(resampled), seed)
    low, high = np.quantile(moved, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(values.mean()), float(low), float(high))


def paired_difference(
    scores: Sequence[float], reference: Sequence[float], draws: Sequence[Floats] | None, reference_draws: Sequence[Floats] | None,
    seed: int, paired_seeds: bool = True, level: float = LEVEL,
) -> Estimate | None:  # fmt: skip
    """Mean of `scores` minus mean of `reference`, one each a training seed, with its interval.

    Draws as in `mean_interval`, on the same resampled examples for both. With `paired_seeds` entry s of both had the
    same training seed, and the spread is that of their differences; otherwise both spreads count.
    """
    one, two = np.asarray(scores, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    examples = draws is not None and reference_draws is not None
    if not examples and min(len(one), len(two)) < 2:
        return None
    value = float(one.mean() - two.mean())
    if examples:
        assert draws is not None
        assert reference_draws is not None
        resampled = np.mean(np.stack(list(draws)), axis=0) - np.mean(np.stack(list(reference_draws)), axis=0)
    else:
        resampled = np.full(RESAMPLES, value)

    def noise(count: int) -> Floats:
        if paired_seeds and len(one) == len(two):
            return _seed_noise(one - two, count, seed)
        return _seed_noise(one, count, seed) - _seed_noise(two, count, seed + 1)

    low, high = np.quantile(resampled + noise(len(resampled)), [(1 - level) / 2, (1 + level) / 2])
    if min(len(one), len(two)) < 2:
        p_value = p_of_draws(resampled, value)
    else:  # the tails of Student's t are counted, for they are no normal ones
        moved = np.repeat(resampled, FINE) + noise(FINE * len(resampled))
        beyond = min((moved <= 0).sum(), (moved >= 0).sum())
        p_value = min(1.0, 2 * (int(beyond) + 1) / (len(moved) + 1))
    return Estimate(value, float(low), float(high), p_value)


def _seed_noise(values: Floats, count: int, seed: int) -> Floats:
    """What another set of training seeds might have added to the mean of `values` (count,)."""
    seeds = len(values)
    if seeds < 2:
        return np.zeros(count)
    error = float(values.std(ddof=1)) / np.sqrt(seeds)
    noise: Floats = np.random.default_rng([seed, 0x5EED]).standard_t(seeds - 1, size=count) * error
    return noise


def resamples(examples: int, seed: int, count: int = RESAMPLES) -> NDArray[np.int64]:
    """Which examples each resample takes (count, examples), the same for the same seed."""
    return np.random.default_rng([seed, examples]).integers(examples, size=(count, examples))
