"""SQuAD 1.1 and 2.0: exact match and F1 of answers, as the official `evaluate-v1.1.py` and `evaluate-v2.0.py` compute
them.

Rajpurkar et al. 2016, "SQuAD", section 6.1, arxiv.org/abs/1606.05250, and 2018, "Know What You Don't Know", section 4,
arxiv.org/abs/1806.03822. Both compare normalised texts: lower case, without ASCII punctuation, without the words a, an
and the, spaces made single. A prediction scores as much as with the best of the right answers. In percent, the mean
over the questions. The official rules are kept by hand: no library has both versions and the thresholds.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.metrics.base import Column, CountedMetric

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


class Squad(CountedMetric):
    """SQuAD 1.1: `{"exact_match": …, "f1": …}` in 0 … 100, of texts and lists of right answers, one a question."""

    values = "answers"
    scores = ("exact_match", "f1")
    best = 100.0

    def counts(self, predictions: Column, references: Column) -> NDArray[np.float64]:
        """(questions, 3): exact match and F1 in 0 … 1, and 1."""
        import numpy as np

        texts, right = paired_answers(predictions, references)
        each = [self.of_question(text, answers) for text, answers in zip(texts, right, strict=True)]
        return np.array([(exact, f1, 1.0) for exact, f1 in each], dtype=np.float64)

    def of_question(self, prediction: str, answers: Sequence[str]) -> tuple[float, float]:
        """Exact match and F1 of one question, in 0 … 1. Raises ValueError for a question without an answer."""
        if not answers:
            raise ValueError("a question has no right answer; score it with the metric squad_v2")
        text, right = normalised(prediction), [normalised(answer) for answer in answers]
        return float(any(text == answer for answer in right)), max(overlap(text, answer) for answer in right)

    def of_counts(self, sums: NDArray[np.float64]) -> dict[str, float]:
        return {"exact_match": float(100.0 * sums[0] / sums[2]), "f1": float(100.0 * sums[1] / sums[2])}


class SquadV2(Squad):
    """SQuAD 2.0: the same where some questions have no answer. Not to answer is the empty text.

    Where a question has no answer, or none that is left by the normalisation of SQuAD 1.1, only an empty prediction is
    right.
    """

    def of_question(self, prediction: str, answers: Sequence[str]) -> tuple[float, float]:
        text = normalised(prediction)
        right = [answer for each in answers if (answer := normalised(each))] or [""]
        f1 = max(overlap(text, answer) if text and answer else float(text == answer) for answer in right)
        return float(any(text == answer for answer in right)), f1


def by_answerability(predictions: Column, references: Column) -> dict[str, float]:
    """The scores of the questions with and without an answer, under the official script's names, and how many they
    are.
    """
    import numpy as np

    metric = SquadV2()
    counts = metric.counts(predictions, references)
    answerable = np.array([len(answers) > 0 for answers in references])
    scores: dict[str, float] = {}
    for name, chosen in (("HasAns", answerable), ("NoAns", ~answerable)):
        if chosen.any():
            part = metric.of_counts(counts[chosen].sum(axis=0))
            scores |= {f"{name}_exact": part["exact_match"], f"{name}_f1": part["f1"]}
            scores |= {f"{name}_total": int(chosen.sum())}
    return scores


def best_threshold(answers: Column, differences: ArrayLike, references: Column) -> dict[str, float]:
    """The best scores that any threshold gives, and those thresholds, as `find_all_best_thresh` of the official script.

    `answers` (questions,) are the best texts that are not empty, `differences` (questions,) how much better "no answer"
    scores than they: a question is answered where its difference is at most the threshold. These scores are chosen on
    the very questions that they are measured on, and so are no fair estimate.
    """
    import numpy as np

    order = np.argsort(np.asarray(differences, dtype=np.float64), kind="stable")
    ordered = np.asarray(differences, dtype=np.float64)[order]
    counts = SquadV2().counts(answers, references)
    blank = np.array([len(right) == 0 for right in references])
    scores: dict[str, float] = {}
    for column, name in enumerate(("exact", "f1")):
        gains = np.where(blank, -1.0 * np.array([bool(text) for text in answers]), counts[:, column])[order]
        # one after another, as the script adds: sums that tie stay ties
        current = np.cumsum(np.concatenate([[blank.sum()], gains]))
        place = int(current.argmax())
        scores[f"best_{name}"] = float(100.0 * current[place] / len(order))
        scores[f"best_{name}_thresh"] = float(ordered[place - 1]) if place else 0.0
    return scores


def at_threshold(answers: ArrayLike, differences: ArrayLike, threshold: float) -> NDArray[np.object_]:
    """The texts (questions,), empty where "no answer" scores better by more than the threshold."""
    import numpy as np

    texts = np.asarray(answers, dtype=object).copy()
    texts[np.asarray(differences) > threshold] = ""
    return texts


def normalised(text: str) -> str:
    """The text as it is compared. The order matters: an article is looked for when the punctuation is gone."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def overlap(prediction: str, answer: str) -> float:
    """F1 of the words that two normalised texts share, each as often as it occurs in both. 0 … 1."""
    predicted, right = prediction.split(), answer.split()
    same = sum((Counter(predicted) & Counter(right)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(right)
    return 2 * precision * recall / (precision + recall)


def paired_answers(predictions: Column, references: Column) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """A text and a list of texts a question. Raises ValueError for anything else, other lengths, or nothing."""
    texts = list(predictions)
    right = [list(answers) if isinstance(answers, list | tuple) else answers for answers in references]
    if len(texts) != len(right):
        raise ValueError(f"predictions and references must be as many, found {len(texts)} and {len(right)}")
    if not texts:
        raise ValueError("there is no question to score")
    wrong = [text for text in texts if not isinstance(text, str)]
    if wrong:
        raise ValueError(f"predictions must be texts, found {type(wrong[0]).__name__}")
    for answers in right:
        if not isinstance(answers, list) or not all(isinstance(text, str) for text in answers):
            raise ValueError(f"references must be lists of texts, one list a question, found {str(answers)[:40]}")
    return texts, right
