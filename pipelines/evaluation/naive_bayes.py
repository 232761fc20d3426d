"""Naive Bayes over word counts: what the words alone give away, in any order and without a network.

The multinomial model with add-one smoothing of McCallum & Nigam 1998, "A Comparison of Event Models for Naive Bayes
Text Classification", section 2.2, by scikit-learn. The two texts of a pair are counted together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.evaluation.baselines import NotDefined
from pipelines.protocols import Rows

WORD = r"(?u)\b\w+\b"
"""scikit-learn's own pattern drops words of one letter, which would make "I" and "a" invisible."""
NEVER = -1e30
"""Log probability of a class that no training row has: finite, and below every other."""


def naive_bayes(train: Rows, evaluation: Rows, outputs: int) -> NDArray[Any]:
    """Joint log probabilities (examples, outputs) after counting the words of `train`."""
    return by_counts(train, evaluation, outputs, longest=1)


def by_counts(train: Rows, evaluation: Rows, outputs: int, longest: int) -> NDArray[Any]:
    """The same for runs of up to `longest` neighbouring words."""
    if outputs < 2:
        raise NotDefined("naive Bayes tells classes apart; a task with numbers or texts for answers has none")
    if train.labels is None or len(train) == 0:
        raise NotDefined("the training rows have no labels to learn from")
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import MultinomialNB

    counter = CountVectorizer(token_pattern=WORD, ngram_range=(1, longest))
    try:
        counts = counter.fit_transform(_documents(train))
    except ValueError:
        raise NotDefined("the training rows hold no word that could be counted") from None
    model = MultinomialNB().fit(counts, np.asarray(train.labels, dtype=np.int64))
    scores = np.full((len(evaluation), outputs), NEVER)
    scores[:, model.classes_] = model.predict_joint_log_proba(counter.transform(_documents(evaluation)))
    return scores


def _documents(rows: Rows) -> list[str]:
    if rows.pairs is None:
        return list(rows.texts)
    return [f"{text} {pair}" for text, pair in zip(rows.texts, rows.pairs, strict=True)]
