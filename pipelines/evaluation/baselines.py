"""Baselines without a network that a model's scores are held against. Each is a function of the BASELINES table.

A baseline is fitted on the rows that the model was trained on and gives what a model would give for the evaluated rows:
scores of classes, texts, or scores of two answers. A model that scores no more has learnt nothing that its scores could
show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.interfaces import Rows, Score
from pipelines.core.registry import BASELINES
from pipelines.tasks.evaluation import NotDefined
from pipelines.tasks.preference.rows import PreferenceRows

Baseline = Callable[[Rows, Rows, int], NDArray[np.generic]]
"""`baseline(train, evaluation, outputs)`: what a model would give for each evaluated row, from the training rows."""


@dataclass
class BaselineScores:
    """What the baselines of one benchmark give and reach, by their names."""

    answers: dict[str, dict[str, NDArray[np.generic]]] = field(default_factory=dict)
    """By the suffix of a split's metric names."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Why the others have no score."""


def score_baselines(
    names: Iterable[str], score: Score, outputs: int, train: Rows, splits: Mapping[str, Rows]
) -> BaselineScores:
    """Fit each baseline and score it on the splits, which are named by the suffix of their metric names."""
    found = BaselineScores()
    for name in names:
        guess: Baseline = BASELINES.load(name)
        try:
            found.answers[name] = {suffix: guess(train, rows, outputs) for suffix, rows in splits.items()}
        except NotDefined as reason:
            found.skipped[name] = str(reason)
            continue
        found.scores[name] = {
            f"{metric}{suffix}": value
            for suffix, answers in found.answers[name].items()
            for metric, value in score(answers, _labels(splits[suffix])).items()
        }
    return found


def _labels(rows: Rows) -> Any:
    """The labels as they stand in the rows: scores take lists as well as arrays."""
    return rows.labels


def majority(train: Rows, evaluation: Rows, outputs: int) -> NDArray[np.generic]:
    """Always the class that is most frequent in the training rows: the score to beat first.

    Returns: (examples, outputs), each class's share of the training rows, the same for every example.
    """
    if outputs < 2:
        raise NotDefined("numbers and texts have no most frequent class, and a constant guess tells nothing")
    if train.labels is None or len(train) == 0:
        raise NotDefined("the training rows have no labels to count")
    shares = np.bincount(np.asarray(train.labels, dtype=np.int64), minlength=outputs) / len(train)
    return np.tile(shares, (len(evaluation), 1))


def majority_by_word(train: Rows, evaluation: Rows, outputs: int) -> NDArray[np.generic]:
    """Each word's most frequent tag in the training rows, of unknown words the most frequent of all.

    The baseline of part-of-speech tagging since Charniak et al. 1993, "Equations for Part-of-Speech Tagging", section
    3: about nine of ten English words are right. For entities see Tjong Kim Sang & De Meulder 2003, section 3. Of
    equally frequent tags the one with the smaller id is taken.

    Returns: (texts,), the ids of each text's tags.
    """
    train_words: Any = getattr(train, "words", None)
    texts: Any = getattr(evaluation, "words", None)
    if train_words is None or texts is None:
        raise NotDefined("only words with a tag each have a most frequent tag")
    if train.labels is None or len(train) == 0:
        raise NotDefined("the training rows have no tags to count")
    of_word: dict[str, Counter[int]] = {}
    every: Counter[int] = Counter()
    tagged: Any = train.labels
    for words, tags in zip(train_words, tagged, strict=True):
        every.update(tags)
        for word, tag in zip(words, tags, strict=True):
            of_word.setdefault(word, Counter())[tag] += 1
    usual = _most(every)
    best = {word: _most(counter) for word, counter in of_word.items()}
    guesses = np.empty(len(evaluation), dtype=object)
    guesses[:] = [np.array([best.get(word, usual) for word in words], dtype=np.int64) for words in texts]
    return guesses


def _most(counter: Counter[int]) -> int:
    return min(counter, key=lambda tag: (-counter[tag], tag))


WORD = r"(?u)\b\w+\b"
"""scikit-learn's own pattern drops words of one letter, which would make "I" and "a" invisible."""
NEVER = -1e30
"""Log probability of a class that no training row has: finite, and below every other."""


def naive_bayes(train: Rows, evaluation: Rows, outputs: int) -> NDArray[np.generic]:
    """Naive Bayes over word counts: what the words alone give away, in any order.

    The multinomial model with add-one smoothing of McCallum & Nigam 1998, "A Comparison of Event Models for Naive
    Bayes Text Classification", section 2.2, by scikit-learn. The two texts of a pair are counted together.

    Returns: joint log probabilities (examples, outputs).
    """
    return _by_counts(train, evaluation, outputs, longest=1)


def naive_bayes_pairs(train: Rows, evaluation: Rows, outputs: int) -> NDArray[np.generic]:
    """Naive Bayes over words and pairs of neighbouring words: what local word order gives away.

    Wang & Manning 2012, "Baselines and Bigrams", section 2.1, aclanthology.org/P12-2018, found that word pairs help
    naive Bayes on every task they tried.
    """
    return _by_counts(train, evaluation, outputs, longest=2)


def _by_counts(train: Rows, evaluation: Rows, outputs: int, longest: int) -> NDArray[np.generic]:
    """Joint log probabilities (examples, outputs) after counting runs of up to `longest` words of `train`."""
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


def copy_source(train: Rows, evaluation: Rows, outputs: int) -> NDArray[np.generic]:
    """Leave a text that is to be rewritten as it is: what names, numbers and punctuation give away to a metric.

    Returns: the sources (examples,).
    """
    if not train.labels or not isinstance(train.labels[0], str):
        raise NotDefined("only a text that is to become another text can be copied")
    return np.asarray(evaluation.texts, dtype=object)


def longer(train: Rows, evaluation: Rows, outputs: int) -> NDArray[np.float64]:
    """The longer of two answers is the better one: what a reward model must beat to have learnt more.

    People and judges prefer longer answers (Singhal et al. 2023, "A Long Way to Go: Investigating Length Correlations
    in RLHF", arxiv.org/abs/2310.03716), or shorter ones where long ones do harm. Lengths are counted in letters; equal
    ones count half.

    Returns: scores (pairs, 2), the chosen answer's first.
    """
    return _lengths(evaluation)


def shorter(train: Rows, evaluation: Rows, outputs: int) -> NDArray[np.float64]:
    """The shorter answer is the better one: scores (pairs, 2), the chosen answer's first."""
    return -_lengths(evaluation)


def _lengths(rows: Rows) -> NDArray[np.float64]:
    if not isinstance(rows, PreferenceRows):
        raise NotDefined("compares two answers by their length, and the task has no pairs of answers")
    return np.array(
        [[len(one.completion), len(other.completion)] for one, other in zip(rows.chosen, rows.rejected, strict=True)],
        dtype=np.float64,
    )
