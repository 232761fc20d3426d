"""Corrections for making many comparisons: one of twenty useless methods would look better at p < 0.05.

Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6: keeps the
chance of even one false claim among all at the level. Benjamini and Hochberg 1995, "Controlling the false discovery rate",
JRSS B 57, section 3: keeps the expected share of false claims among the claims at the level, which finds more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

Correction = Literal["holm", "bh", "none"]
CORRECTIONS: tuple[Correction, ...] = ("holm", "bh", "none")
NAMES = {"holm": "Holm", "bh": "Benjamini-Hochberg", "none": "no correction"}
"""How they are called where people read."""
LEVEL = 0.05
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
    methods: dict[str, Callable[[Sequence[float]], list[float]]] = {"holm": holm, "bh": benjamini_hochberg, "none": list}
    return methods[how](p_values)


def holm(p_values: Sequence[float]) -> list[float]:
    """The smallest p-value times m, the next times m - 1, …; none smaller than the one before it, none above 1."""
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    found, largest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[at]))
        found[at] = largest
    return found


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """The k-th smallest of m p-values times m / k; none larger than the one behind it."""
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    found, smallest = [0.0] * len(p_values), 1.0
    for rank in range(len(order), 0, -1):
        at = order[rank - 1]
        smallest = min(smallest, p_values[at] * len(p_values) / rank)
        found[at] = smallest
    return found
