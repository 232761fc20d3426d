"""Tests of a difference between two models that were asked the same examples, in plain Python.

They stand here because the service compares runs of evals with them, and imports no numpy.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Sequence

ROUNDS = 1999
"""Tosses: with the observed one 2,000, so the smallest p-value is 0.0005."""
RESAMPLES = 1000
TOLERANCE = 1e-12
"""Of two sums that are equal but for the last bits."""


def p_values(only_first: int, only_second: int) -> tuple[float, float]:
    """(exact, mid) two-sided p-values of McNemar's test, by the examples that exactly one of two models gets right;
    both are 1 where the models never differ.

    The split is held against a fair coin. Fagerland, Lydersen and Laake 2013, "The McNemar test for binary
    matched-pairs data", sections 2.3 and 2.4.
    """
    disputed, fewer = only_first + only_second, min(only_first, only_second)
    if disputed == 0:
        return 1.0, 1.0
    ways = math.lgamma(disputed + 1) - math.lgamma(fewer + 1) - math.lgamma(disputed - fewer + 1)
    point = math.exp(ways - disputed * math.log(2))
    tail, term = point, point
    for count in range(fewer, 0, -1):  # from the observed split outwards, each term from the one before
        term *= count / (disputed - count + 1)
        tail += term
        if term < tail * 1e-18:
            break
    exact = min(1.0, 2 * tail)
    return exact, min(1.0, 2 * tail - point)


def sign_test(differences: Sequence[float], seed: int, rounds: int = ROUNDS) -> float:
    """Two-sided p-value of a mean difference: would it be as large had the two models' answers changed places?

    The sign of every example's difference is turned by the toss of a coin, many times; the p-value is the share of the
    tosses whose sum is at least as large as the real one, which counts as one of them. Noreen 1989, "Computer-Intensive
    Methods for Testing Hypotheses", chapter 2. A toss takes eight signs at once, from tables of their sums.
    """
    moved = [each for each in differences if each]
    observed = abs(math.fsum(moved))
    tables = [_signed_sums(moved[at : at + 8]) for at in range(0, len(moved), 8)]
    tosses = random.Random(seed)
    as_large = 1
    for _ in range(rounds):
        bits = tosses.getrandbits(len(moved)) if moved else 0
        total = sum(map(operator.getitem, tables, bits.to_bytes(len(tables), "little")))
        as_large += abs(total) >= observed - TOLERANCE
    return as_large / (rounds + 1)


def _signed_sums(values: Sequence[float]) -> list[float]:
    """Their sum for every choice of signs: at a number whose bit n is set, value n is subtracted."""
    sums = [0.0]
    for value in values:
        sums = [each + value for each in sums] + [each - value for each in sums]
    return sums


def mean_interval(differences: Sequence[float], seed: int, resamples: int = RESAMPLES) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of a mean. Efron and Tibshirani 1993, section 13.3."""
    draw = random.Random(seed)
    count = len(differences)
    means = sorted(sum(draw.choices(differences, k=count)) / count for _ in range(resamples))
    tail = round(0.025 * resamples)
    return means[tail], means[-tail - 1]


def holm(p_values: Sequence[float]) -> list[float]:
    """The smallest p-value times m, the next times m - 1, …; none smaller than the one before it, none above 1.

    Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6: keeps
    the chance of even one false claim among all at the level.
    """
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = largest
    return adjusted
