"""SQuAD 2.0: exact match and F1 where some questions have no answer, as the official `evaluate-v2.0.py`.

Rajpurkar et al. 2018, "Know What You Don't Know", section 4, arxiv.org/abs/1806.03822. Not to answer is the empty
text. Where a question has no answer, or none that is left by the normalisation of SQuAD 1.1, only an empty prediction
is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipelines.metrics.squad import normalised, of_counts, overlap, paired_answers

__all__ = ["at_threshold", "best_threshold", "by_answerability", "compute", "counts", "of_counts"]


def counts(predictions: Any, references: Any) -> NDArray[np.float64]:
    """(questions, 3): exact match and F1 in 0 … 1, and 1. What a corpus scores follows from their sums."""
    said, right = paired_answers(predictions, references)
    return np.array(
        [_one(prediction, answers) for prediction, answers in zip(said, right, strict=True)], dtype=np.float64
    )


def _one(prediction: str, answers: Sequence[str]) -> tuple[float, float, float]:
    said = normalised(prediction)
    right = [text for answer in answers if (text := normalised(answer))] or [""]
    exact = float(any(said == answer for answer in right))
    return exact, max(_overlap(said, answer) for answer in right), 1.0


def _overlap(said: str, right: str) -> float:
    return overlap(said, right) if said and right else float(said == right)


def compute(predictions: Any, references: Any, classes: int | None = None) -> dict[str, float]:
    """`{"exact_match": …, "f1": …}` in 0 … 100, of texts (questions,) and lists of right answers (questions,)."""
    return of_counts(counts(predictions, references).sum(axis=0))


def by_answerability(predictions: Any, references: Any) -> dict[str, float]:
    """The scores of the questions with and without an answer, under the official script's names, and how many they
    are."""
    each = counts(predictions, references)
    answerable = np.array([len(answers) > 0 for answers in references])
    found: dict[str, float] = {}
    for name, chosen in (("HasAns", answerable), ("NoAns", ~answerable)):
        if chosen.any():
            scores = of_counts(each[chosen].sum(axis=0))
            found |= {
                f"{name}_exact": scores["exact_match"],
                f"{name}_f1": scores["f1"],
                f"{name}_total": int(chosen.sum()),
            }
    return found


def best_threshold(answers: Any, differences: ArrayLike, references: Any) -> dict[str, float]:
    """The best scores that any threshold gives, and those thresholds, as `find_all_best_thresh` of the official script.

    `answers` (questions,) are the best texts that are not empty, `differences` (questions,) how much better "no
    answer" scores than they: a question is answered where its difference is at most the threshold. These scores are
    chosen on the very questions that they are measured on, and so are no fair estimate.
    """
    order = np.argsort(np.asarray(differences, dtype=np.float64), kind="stable")
    scores = counts(answers, references)
    blank = np.array([len(right) == 0 for right in references])
    found: dict[str, float] = {}
    for column, name in enumerate(("exact", "f1")):
        gains = np.where(blank, -1.0 * np.array([bool(text) for text in answers]), scores[:, column])[order]
        current = np.cumsum(
            np.concatenate([[blank.sum()], gains])
        )  # one after another, as the script adds: sums that tie stay ties
        place = int(current.argmax())
        ordered = np.asarray(differences, dtype=np.float64)[order]
        found[f"best_{name}"] = float(100.0 * current[place] / len(order))
        found[f"best_{name}_thresh"] = float(ordered[place - 1]) if place else 0.0
    return found


def at_threshold(answers: Any, differences: ArrayLike, threshold: float) -> NDArray[Any]:
    """The texts (questions,), empty where "no answer" scores better by more than the threshold."""
    said = np.asarray(answers, dtype=object).copy()
    said[np.asarray(differences) > threshold] = ""
    return said


@cache
def _metric() -> type:
    from pipelines.metrics.base import metric_module

    return metric_module(__name__, "SquadV2", compute, "answers", __doc__)


def __getattr__(name: str) -> Any:
    """`SquadV2`, the same as an `evaluate.Metric`."""
    if name == "SquadV2":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
