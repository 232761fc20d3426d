"""Approximate randomisation: would the difference be as large if the two models' answers were shuffled between them?

Noreen 1989, "Computer-Intensive Methods for Testing Hypotheses", chapter 2; for scores of whole test sets, such as F1,
Yeh 2000, "More accurate tests for the statistical significance of result differences", aclanthology.org/C00-2137. If the
models were equally good, it would not matter which of them gave which of the two answers to an example. So the answers to
each example are swapped by the toss of a coin, both sides are scored again, and that many times; the p-value is the share
of the tosses whose difference is at least as large as the real one, which counts as one of them. Any score will do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

ROUNDS = 1999
"""Tosses: with the observed one 2,000, so the smallest p-value is 0.0005."""
Scores = Mapping[str, float]
TOLERANCE = 1e-12
"""Of two differences that are equal but for the last bits."""


def randomisation(
    examples: int, scored: Callable[[NDArray[np.bool_]], tuple[Scores, Scores]], seed: int, rounds: int = ROUNDS
) -> dict[str, float]:
    """Two-sided p-values, by score.

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
