"""Predictions as people read them: each example of a split as it was scored, and the columns of a table of answers.

A probability is the softmax of the logits, as the model gives them: it is not calibrated. Of spans it is the softmax
over the best spans and, where a question may have none, "no answer", as BERT's `run_squad.py` has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.metrics.base import Column, counted_metric
from pipelines.metrics.calibration import softmax

Columns = dict[str, list[Any]]
"""Of a table that people read: a cell an example, by the name of the column."""


@dataclass(frozen=True)
class ScoredExamples:
    """The examples of a split that has public labels."""

    gold: Sequence[str]
    answers: Sequence[str]
    wrong: NDArray[np.bool_]
    """Which examples are mistakes (examples,)."""
    badness: NDArray[np.float64]
    """What mistakes are ordered by, the worst largest (examples,)."""
    order: str
    """What that is, in words."""
    confidence: NDArray[np.float64] | None = None
    """Probability of the answer (examples,); None where the model tells none."""
    logits: NDArray[Any] | None = None
    """(decisions, classes): what calibration is measured on; a text with tags is many decisions."""
    labels: NDArray[Any] | None = None
    """(decisions,)"""
    classes: Sequence[str] = field(default=())
    """Names of the classes, for a confusion matrix; empty where the classes mean something else in each example."""


def scored_decisions(
    logits: NDArray[np.floating],
    labels: NDArray[np.integer],
    gold: Sequence[str],
    answers: Sequence[str],
    classes: Sequence[str] = (),
) -> ScoredExamples:
    """One class an example, the likeliest: the surest wrong answer is the worst."""
    confidence = softmax(logits).max(axis=1)
    return ScoredExamples(
        gold,
        answers,
        logits.argmax(axis=1) != labels,
        confidence,
        "confidence in the wrong answer",
        confidence,
        logits,
        labels,
        classes,
    )


def scored_texts(
    texts: list[str], references: list[str], compared_texts: Column, compared_references: Column, metrics: Sequence[str]
) -> ScoredExamples:
    """Texts in words: the worst is the one that scores least by itself, by the last metric, as BLEU is none of
    single sentences."""
    metric = counted_metric(metrics[-1])
    scores = np.array(
        [next(iter(metric.of_counts(row).values())) for row in metric.counts(compared_texts, compared_references)]
    )
    same = np.array(
        [str(one).strip() == str(other).strip() for one, other in zip(compared_texts, compared_references, strict=True)]
    )
    return ScoredExamples(references, texts, ~same, -scores, f"{metrics[-1]} of the single text")


def decision_columns(logits: NDArray[np.floating], classes: Sequence[str]) -> Columns:
    """The likeliest class of each example, its probability, and the probability of every class."""
    probabilities = softmax(logits)
    chosen = logits.argmax(axis=1)
    columns: Columns = {
        "prediction": [classes[at] for at in chosen],
        "probability": [float(row[at]) for row, at in zip(probabilities, chosen, strict=True)],
    }
    return columns | {
        f"probability_{name}": [float(value) for value in probabilities[:, at]] for at, name in enumerate(classes)
    }
