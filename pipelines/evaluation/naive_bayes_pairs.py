"""Naive Bayes over words and pairs of neighbouring words: what local word order gives away.

A stronger guesser than `naive_bayes` where order matters. Wang & Manning 2012, "Baselines and Bigrams", section 2.1,
aclanthology.org/P12-2018, found that word pairs help naive Bayes on every task they tried.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from pipelines.evaluation.naive_bayes import by_counts
from pipelines.protocols import Rows


def naive_bayes_pairs(train: Rows, evaluation: Rows, outputs: int) -> NDArray[Any]:
    """Joint log probabilities (examples, outputs) after counting the words and word pairs of `train`."""
    return by_counts(train, evaluation, outputs, longest=2)
