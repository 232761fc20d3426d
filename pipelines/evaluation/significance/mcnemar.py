"""McNemar's test: do two models err on different numbers of the same examples?

McNemar 1947, "Note on the sampling error of the difference between correlated proportions", Psychometrika 12; for
comparing classifiers Dietterich 1998, "Approximate statistical tests", section 3.1. Only the examples that exactly one of
the two gets right say anything. If the models were equally good, each of those would fall to either side like a fair
coin, so their split is binomial: exact for every number of examples, where the chi-squared form needs many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class McNemar:
    """The counts and the two p-values, both two-sided."""

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


def mcnemar(first: Any, second: Any) -> McNemar:
    """The test on which examples each model got right, both (examples,) of truth values. Raises ValueError."""
    one, two = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if one.shape != two.shape or one.ndim != 1:
        raise ValueError(f"both models must be judged on the same examples, found shapes {one.shape} and {two.shape}")
    only_first, only_second = int((one & ~two).sum()), int((two & ~one).sum())
    exact, mid = p_values(only_first, only_second)
    return McNemar(only_first, only_second, exact, mid)


def p_values(only_first: int, only_second: int) -> tuple[float, float]:
    """(exact, mid) two-sided p-values of such a split; both are 1 where the models never differ."""
    from scipy.stats import binom

    disputed = only_first + only_second
    if disputed == 0:
        return 1.0, 1.0
    fewer = min(only_first, only_second)
    tail, point = float(binom.cdf(fewer, disputed, 0.5)), float(binom.pmf(fewer, disputed, 0.5))
    exact = min(1.0, 2 * tail)
    return exact, min(1.0, 2 * tail - point)
