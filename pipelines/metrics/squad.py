"""SQuAD 1.1: exact match and F1 of answers, as the official `evaluate-v1.1.py` computes them.

Predicted answers and lists of right ones, checked once for every metric of answers.

SQuAD 1.1: exact match and F1 of answers, as the official `evaluate-v1.1.py` computes them.

Rajpurkar et al. 2016, "SQuAD", section 6.1, arxiv.org/abs/1606.05250. Both compare normalised texts: lower case,
without ASCII punctuation, without the words a, an and the, spaces made single. A prediction scores as much as with
the best of the right answers. In percent, the mean over the questions.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


def paired_answers(predictions: Any, references: Any) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """A text and a list of texts a question. Raises ValueError where they are something else, differ in length, or
    are empty."""
    said, right = (
        list(predictions),
        [list(answers) if isinstance(answers, list | tuple) else answers for answers in references],
    )
    if len(said) != len(right):
        raise ValueError(f"predictions and references must be as many, found {len(said)} and {len(right)}")
    if not said:
        raise ValueError("there is no question to score")
    wrong = [text for text in said if not isinstance(text, str)]
    if wrong:
        raise ValueError(f"predictions must be texts, found {type(wrong[0]).__name__}")
    strange = [
        answers
        for answers in right
        if not isinstance(answers, list) or not all(isinstance(text, str) for text in answers)
    ]
    if strange:
        raise ValueError(f"references must be lists of texts, one list a question, found {str(strange[0])[:40]}")
    return said, right


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """The text as it is compared. The order matters: an article is looked for when the punctuation is gone."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def overlap(prediction: str, answer: str) -> float:
    """F1 of the words that two normalised texts share, each as often as it occurs in both. 0 … 1."""
    said, right = prediction.split(), answer.split()
    same = sum((Counter(said) & Counter(right)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(said), same / len(right)
    return 2 * precision * recall / (precision + recall)


def counts(predictions: Any, references: Any) -> NDArray[np.float64]:
    """(questions, 3): exact match and F1 in 0 … 1, and 1. What a corpus scores follows from their sums."""
    said, right = paired_answers(predictions, references)
    return np.array(
        [_one(prediction, answers) for prediction, answers in zip(said, right, strict=True)], dtype=np.float64
    )


def _one(prediction: str, answers: Sequence[str]) -> tuple[float, float, float]:
    if not answers:
        raise ValueError("a question has no right answer; score it with the metric squad_v2")
    said = normalised(prediction)
    right = [normalised(answer) for answer in answers]
    return float(any(said == answer for answer in right)), max(overlap(said, answer) for answer in right), 1.0


def of_counts(sums: NDArray[np.float64]) -> dict[str, float]:
    """The scores of questions whose counts have these sums (3,), in percent."""
    return {"exact_match": float(100.0 * sums[0] / sums[2]), "f1": float(100.0 * sums[1] / sums[2])}


def compute(predictions: Any, references: Any, classes: int | None = None) -> dict[str, float]:
    """`{"exact_match": …, "f1": …}` in 0 … 100, of texts (questions,) and lists of right answers (questions,)."""
    return of_counts(counts(predictions, references).sum(axis=0))


@cache
def _metric() -> type:
    from pipelines.metrics.base import metric_module

    return metric_module(__name__, "Squad", compute, "answers", __doc__)


def __getattr__(name: str) -> Any:
    """`Squad`, the same as an `evaluate.Metric`."""
    if name == "Squad":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
