"""From log-likelihoods to scores: which answer is taken, in each way of weighing them, and how good that is.

`acc`: the likeliest answer. `acc_norm`, `acc_bytes`, `acc_tokens`: divided by the length of the answer (the harness' acc_norm
divides by characters). `acc_answer_context`: divided by the probability of the answer behind nothing but "Answer:" (Brown et
al. 2020, section 2.4). `acc_contextual`: probabilities over the answers, divided by those for questions without content
(Zhao et al. 2021, section 5: W = diag(p_cf)^-1, b = 0, arxiv.org/abs/2102.09690).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.protocols import Score
from pipelines.registry import METRICS

Floats = NDArray[np.float64]


def per_length(nats: Floats, lengths: Floats) -> Floats:
    """Log-likelihoods (…, options) for each unit of length. An answer without length is worth what it is."""
    found: Floats = nats / np.maximum(lengths, 1.0)
    return found


def contextual(nats: Floats, without_content: Floats) -> Floats:
    """log p - log p_cf, of probabilities over the answers: nats (questions, options), without_content (questions, inputs, options).

    p_cf is the mean over the inputs without content.
    """
    mean = np.exp(log_softmax(without_content)).mean(axis=-2)
    found: Floats = log_softmax(nats) - np.log(np.maximum(mean, np.finfo(np.float64).tiny))
    return found


def log_softmax(nats: Floats) -> Floats:
    """Log-probabilities over the last axis."""
    shifted = nats - nats.max(axis=-1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def score_options(names: Sequence[str], metrics: Sequence[str], classes: int | None) -> Score:
    """Scores of weighed answers (questions, draws, ways, options), in the order of `names`, as means over the draws.

    `metrics` beyond accuracy are computed of the first way's answers; they need the number of `classes`.
    """
    others = [import_module(METRICS.module(name)).compute for name in metrics if name != "accuracy"] if classes else []

    def of(weighed: Any, labels: Any) -> dict[str, float]:
        chosen = np.asarray(weighed).argmax(axis=-1)  # (questions, draws, ways)
        right = chosen == np.asarray(labels)[:, None, None]
        found = {name: float(right[:, :, at].mean()) for at, name in enumerate(names)}
        for compute in others:
            draws = [compute(chosen[:, draw, 0], labels, classes=classes) for draw in range(chosen.shape[1])]
            found |= {name: float(np.mean([each[name] for each in draws])) for name in draws[0]}
        return found

    return of


def score_numbers(metrics: Sequence[str]) -> Score:
    """Scores of numbers (questions, draws), as means over the draws."""
    computes = [import_module(METRICS.module(name)).compute for name in metrics]

    def of(numbers: Any, labels: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        for compute in computes:
            draws = [compute(numbers[:, draw], labels) for draw in range(numbers.shape[1])]
            found |= {name: float(np.mean([each[name] for each in draws])) for name in draws[0]}
        return found

    return of


def expected(nats: Floats, values: Sequence[float]) -> Floats:
    """The mean of the numbers that answers stand for, by their probability: nats (…, options)."""
    found: Floats = np.exp(log_softmax(nats)) @ np.asarray(values, dtype=np.float64)
    return found


def score_texts(metrics: Sequence[str], counted: Mapping[str, NDArray[Any]]) -> Score:
    """Scores of written texts by their counts (questions, draws, …) of each metric, as means over the draws.

    What is scored are numbers of questions (n,), so that a resample is a choice of them.
    """

    def of(chosen: Any, labels: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        for metric in metrics:
            of_counts: Callable[[Any], dict[str, float]] = import_module(METRICS.module(metric)).of_counts
            sums = counted[metric][np.asarray(chosen)].sum(axis=0)  # (draws, …)
            draws = [of_counts(each) for each in sums]
            found |= {name: float(np.mean([each[name] for each in draws])) for name in draws[0]}
        return found

    return of


def spread(by_draw: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """By score: the standard deviation over the draws, the least and the most."""
    found = {}
    for name in by_draw[0]:
        values = np.asarray([each[name] for each in by_draw])
        found[name] = {"sd": float(values.std(ddof=1)), "min": float(values.min()), "max": float(values.max())}
    return found
