"""How completions compare: wins, the divergence from another model, and how varied they are. Pure functions of arrays.

Estimates of the KL divergence from samples of the first model, with d = log p - log q of what was sampled: k1 = d has no bias,
k3 = exp(-d) - 1 + d has none either, is never below zero and varies less (Schulman 2020, "Approximating KL Divergence",
joschu.net/blog/kl-approx.html). Both are summed over the tokens of a completion, by the chain rule: nats a completion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipelines.evaluation.intervals import intervals

Floats = NDArray[np.float64]


def wins(own: Floats, other: Floats) -> Floats:
    """1 where `own` is the better score, 0 where `other` is, a half for ties (prompts,)."""
    return np.where(own == other, 0.5, (own > other).astype(np.float64))


def kl_estimates(own: Sequence[Floats], other: Sequence[Floats]) -> tuple[Floats, Floats]:
    """(k1, k3) of each completion (prompts,) in nats. `own` and `other` are the log-probabilities of its tokens under both models."""
    differences = [np.asarray(one, dtype=np.float64) - np.asarray(two, dtype=np.float64) for one, two in zip(own, other, strict=True)]
    k1 = np.array([each.sum() for each in differences])
    k3 = np.array([(np.expm1(-each) + each).sum() for each in differences])
    return k1, k3


def distinct(texts: Sequence[str], size: int = 2) -> float:
    """The share of runs of `size` words that are different ones, over all texts together: near 0 where they repeat each other.

    Li et al. 2016, "A Diversity-Promoting Objective Function for Neural Conversation Models", section 5.2,
    arxiv.org/abs/1510.03055, with the number of runs in place of the number of words below the line.
    """
    runs = [tuple(words[at : at + size]) for words in (text.casefold().split() for text in texts) for at in range(len(words) - size + 1)]
    return len(set(runs)) / len(runs) if runs else 0.0


def means(columns: dict[str, Floats]) -> dict[str, float]:
    """The mean of each column (prompts,)."""
    return {name: float(values.mean()) for name, values in columns.items()}


def paired_intervals(columns: dict[str, Floats], seed: int) -> dict[str, tuple[float, float]]:
    """95 % bootstrap intervals of the means: every resample takes the same prompts in every column, so that wins stay wins."""
    names = list(columns)
    table = np.stack([columns[name] for name in names], axis=1)  # (prompts, columns)
    return intervals(lambda rows, _: dict(zip(names, rows.mean(axis=0).tolist(), strict=True)), table, table, seed)
