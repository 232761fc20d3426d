"""The p-value of a difference, from the draws of a bootstrap.

A 95 % interval leaves out zero when fewer than 2.5 % of the draws lie on the other side of it. Twice the share of draws
there is therefore the p-value that goes with the interval (Efron and Tibshirani 1993, "An Introduction to the Bootstrap",
section 15.4, "achieved significance level"). A thousand draws cannot count a share below a thousandth; where fewer than
ten lie beyond zero, the tail is that of the normal distribution with the draws' standard deviation (chapter 13), and never
more than what ten draws would give.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

COUNTABLE = 10
"""Draws on the other side of zero from which on their share is taken as it is."""


def p_of_draws(draws: Any, observed: float) -> float:
    """Two-sided p-value of the difference `observed`, whose resampled values are `draws` (resamples,)."""
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
