"""Guessers that look at nothing but how long two answers are: what a reward model must beat to have learnt more.

People and judges prefer longer answers (Singhal et al. 2023, "A Long Way to Go: Investigating Length Correlations in RLHF",
arxiv.org/abs/2310.03716), or shorter ones where long ones do harm. Lengths are counted in letters; equal ones count half.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.data.preferences import PreferenceRows
from pipelines.evaluation.baselines import NotDefined


def longer(train: Any, evaluation: Any, outputs: int) -> NDArray[np.float64]:
    """The longer answer is the better one: scores (pairs, 2), the chosen answer's first."""
    return _lengths(evaluation)


def shorter(train: Any, evaluation: Any, outputs: int) -> NDArray[np.float64]:
    """The shorter answer is the better one: scores (pairs, 2), the chosen answer's first."""
    return -_lengths(evaluation)


def _lengths(rows: Any) -> NDArray[np.float64]:
    if not isinstance(rows, PreferenceRows):
        raise NotDefined("compares two answers by their length, and the task has no pairs of answers")
    return np.array([[len(one.completion), len(other.completion)] for one, other in zip(rows.chosen, rows.rejected, strict=True)], dtype=np.float64)
