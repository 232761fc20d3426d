"""Weighing tasks by their uncertainty: each task's noise is a learnt number, and noisy tasks count less.

Kendall, Gal and Cipolla 2018, arxiv.org/abs/1705.07115, equations 7 and 10, with s = log sigma^2 (section 3.2): a squared
error enters as exp(-s) / 2 times the loss plus s / 2, a cross-entropy as exp(-s) times the loss plus s / 2.
"""

from __future__ import annotations

from torch import Tensor


def weighed(losses: Tensor, log_variances: Tensor, squared: Tensor, present: Tensor) -> Tensor:
    """The sum over tasks of their losses, weighed.

    losses (tasks,): the mean loss of each task in this batch, as its share of the step; log_variances (tasks,);
    squared (tasks,): whether the loss is a squared error; present (tasks,): the share of the task's items of the step that
    are in this batch, 0 where it has none.
    """
    half = 1.0 - 0.5 * squared.to(losses.dtype)
    return ((-log_variances).exp() * half * losses + 0.5 * log_variances * present).sum()
