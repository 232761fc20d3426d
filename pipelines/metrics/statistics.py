"""How far a score can be trusted: bootstrap intervals, tests of a difference, corrections for many tests.

Intervals say what another sample of test examples might have given, not what another training run might. The tests say
whether a difference between two models is more than chance; many tests together need a correction. Holm's and Benjamini
and Hochberg's corrections are ten lines each and stay here, so that no further library is needed for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipelines.core.interfaces import Score
from pipelines.core.paired_tests import ROUNDS, TOLERANCE, holm, p_values
from pipelines.metrics.base import Column, counted_metric

RESAMPLES = 1000
LEVEL = 0.95
"""Of an interval."""


def percentile_interval(draws: ArrayLike, level: float = LEVEL) -> tuple[float, float]:
    """Both ends of the percentile bootstrap interval of a number, by its values on resampled examples (resamples,).

    Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3: draw as many examples as there are,
    with replacement, score them, and repeat; the middle 95 % of those scores is the interval.
    """
    tail = (1 - level) / 2
    low, high = np.quantile(np.asarray(draws), [tail, 1 - tail])
    return float(low), float(high)


def interval_of_mean(
    values: NDArray[np.float64], seed: int | Sequence[int], resamples: int = RESAMPLES, level: float = LEVEL
) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean of `values` (examples,), the same for the same seed."""
    random = np.random.default_rng(seed)
    return percentile_interval(
        [values[random.integers(len(values), size=len(values))].mean() for _ in range(resamples)], level
    )


def intervals(
    score: Score,
    logits: NDArray[np.generic],
    labels: NDArray[np.generic],
    seed: int,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> dict[str, tuple[float, float]]:
    """Lower and upper end of the percentile bootstrap interval of each score, the same for the same seed."""
    random = np.random.default_rng(seed)
    draws: dict[str, list[float]] = {}
    for _ in range(resamples):
        drawn = random.integers(len(labels), size=len(labels))
        for name, value in score(logits[drawn], labels[drawn]).items():
            draws.setdefault(name, []).append(value)
    return {name: percentile_interval(values, level) for name, values in draws.items()}


def corpus_intervals(
    metrics: Iterable[str],
    texts: Column,
    references: Column,
    seed: int,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> dict[str, tuple[float, float]]:
    """The same for metrics of whole corpora, such as BLEU, which are computed from sums of counts.

    Each example is counted once, and a resample is how often it takes each example: all sums are one product.
    """
    random = np.random.default_rng(seed)
    drawn = random.integers(len(references), size=(resamples, len(references)))
    times = np.stack([np.bincount(row, minlength=len(references)) for row in drawn])  # (resamples, examples)
    ends: dict[str, tuple[float, float]] = {}
    for metric in metrics:
        counted = counted_metric(metric)
        drawn_scores = [counted.of_counts(sums) for sums in times @ counted.counts(texts, references)]
        ends |= {name: percentile_interval([each[name] for each in drawn_scores], level) for name in drawn_scores[0]}
    return ends


COUNTABLE = 10
"""Draws on the other side of zero from which on their share is taken as it is."""


def p_of_draws(draws: ArrayLike, observed: float) -> float:
    """Two-sided p-value of the difference `observed`, whose bootstrap draws are `draws` (resamples,).

    A 95 % interval leaves out zero when fewer than 2.5 % of the draws lie on the other side of it. Twice the share of
    draws there is therefore the p-value that goes with the interval (Efron and Tibshirani 1993, section 15.4,
    "achieved significance level"). A thousand draws cannot count a share below a thousandth; where fewer than ten lie
    beyond zero, the tail is that of the normal distribution with the draws' standard deviation (chapter 13), and never
    more than what ten draws would give.
    """
    values = np.asarray(draws, dtype=np.float64)
    beyond = (values <= 0).sum() if observed > 0 else (values >= 0).sum()
    if observed == 0:
        return 1.0
    counted = min(1.0, 2 * (int(beyond) + 1) / (len(values) + 1))
    if beyond >= COUNTABLE:
        return counted
    spread = float(values.std())
    tail = math.erfc(abs(observed) / spread / math.sqrt(2)) if spread > 0 else 0.0
    least: float = (len(values) + 1) ** -2.0  # not 0: no number of draws shows that something is impossible
    return min(max(tail, least), 2 * (COUNTABLE + 1) / (len(values) + 1))


@dataclass(frozen=True)
class McNemar:
    """McNemar's test: do two models err on different numbers of the same examples? Both p-values are two-sided.

    McNemar 1947, "Note on the sampling error of the difference between correlated proportions", Psychometrika 12; for
    comparing classifiers Dietterich 1998, "Approximate statistical tests", section 3.1. Only the examples that exactly
    one of the two gets right say anything. If the models were equally good, each of those would fall to either side
    like a fair coin, so their split is binomial: exact for every number of examples, where the chi-squared form needs
    many.
    """

    only_first: int
    """Examples that the first model alone gets right."""
    only_second: int
    """Examples that the second model alone gets right."""
    exact: float
    """From the binomial distribution: never too small, and on few examples often too large."""
    mid: float
    """Mid-p: half the probability of the observed split is left out, which errs less on the safe side,
    and with very few disputed examples slightly on the other.
    Fagerland, Lydersen and Laake 2013, "The McNemar test for binary matched-pairs data", section 2.4."""


def mcnemar(first: ArrayLike, second: ArrayLike) -> McNemar:
    """The test on which examples each model got right, both (examples,) of truth values. Raises ValueError."""
    one, two = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if one.shape != two.shape or one.ndim != 1:
        raise ValueError(f"both models must be judged on the same examples, found shapes {one.shape} and {two.shape}")
    only_first, only_second = int((one & ~two).sum()), int((two & ~one).sum())
    exact, mid = p_values(only_first, only_second)
    return McNemar(only_first, only_second, exact, mid)


Scores = Mapping[str, float]


def randomisation(
    examples: int, scored: Callable[[NDArray[np.bool_]], tuple[Scores, Scores]], seed: int, rounds: int = ROUNDS
) -> dict[str, float]:
    """Two-sided p-values, by score: would the difference be as large with the models' answers shuffled between them?

    Noreen 1989, "Computer-Intensive Methods for Testing Hypotheses", chapter 2; for scores of whole test sets, such as
    F1, Yeh 2000, "More accurate tests for the statistical significance of result differences",
    aclanthology.org/C00-2137. If the models were equally good, it would not matter which of them gave which of the two
    answers to an example. So the answers to each example are swapped by the toss of a coin, both sides are scored
    again, and that many times; the p-value is the share of the tosses whose difference is at least as large as the real
    one, which counts as one of them.

    `scored(swapped)` gives the scores of both models when their answers to the examples where `swapped` (examples,) is
    true have changed places. The same for the same seed.
    """
    random = np.random.default_rng([seed, 0xA11])
    first, second = scored(np.zeros(examples, dtype=bool))
    names = [name for name in first if name in second]
    observed = {name: abs(first[name] - second[name]) for name in names}
    as_large = dict.fromkeys(names, 1)
    for _ in range(rounds):
        one, two = scored(random.random(examples) < 0.5)
        for name in names:
            as_large[name] += abs(one[name] - two[name]) >= observed[name] - TOLERANCE
    return {name: count / (rounds + 1) for name, count in as_large.items()}


Correction = Literal["holm", "bh", "none"]
CORRECTIONS: tuple[Correction, ...] = ("holm", "bh", "none")
NAMES = {"holm": "Holm", "bh": "Benjamini-Hochberg", "none": "no correction"}
"""How they are called where people read."""
SIGNIFICANCE_LEVEL = 0.05
"""Below this corrected p-value a difference is called more than noise."""


def shown(p_value: float) -> str:
    """`0.032`, `< 0.001`."""
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def corrected(p_values: Sequence[float], how: Correction) -> list[float]:
    """The p-values, so corrected that each can be held against the level by itself. Raises ValueError."""
    if how not in CORRECTIONS:
        raise ValueError(f"the correction is '{how}', must be one of {', '.join(CORRECTIONS)}")
    wrong = [p for p in p_values if not 0 <= p <= 1]
    if wrong:
        raise ValueError(f"{wrong[0]} is no p-value: it must lie between 0 and 1")
    methods: dict[str, Callable[[Sequence[float]], list[float]]] = {
        "holm": holm,
        "bh": benjamini_hochberg,
        "none": list,
    }
    return methods[how](p_values)


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """The k-th smallest of m p-values times m / k; none larger than the one behind it.

    Benjamini and Hochberg 1995, "Controlling the false discovery rate", JRSS B 57, section 3: keeps the expected share
    of false claims among the claims at the level, which finds more.
    """
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    adjusted, smallest = [0.0] * len(p_values), 1.0
    for rank in range(len(order), 0, -1):
        at = order[rank - 1]
        smallest = min(smallest, p_values[at] * len(p_values) / rank)
        adjusted[at] = smallest
    return adjusted
