"""Guessers without a network that a model's scores are held against: majority, naive Bayes, length, copy.

The guessers without a network that a model's scores are held against, by name.

The majority guesser: always the class that is most frequent in the training rows.

The score to beat first: a model that does not has learnt nothing that its scores could show.

The guesser for tags: each word's most frequent tag in the training rows, of unknown words the most frequent of all.

The baseline of part-of-speech tagging since Charniak et al. 1993, "Equations for Part-of-Speech Tagging", section 3:
about nine of ten English words are right. For entities see Tjong Kim Sang & De Meulder 2003, section 3.

Naive Bayes over word counts: what the words alone give away, in any order and without a network.

The multinomial model with add-one smoothing of McCallum & Nigam 1998, "A Comparison of Event Models for Naive Bayes
Text Classification", section 2.2, by scikit-learn. The two texts of a pair are counted together.

Naive Bayes over words and pairs of neighbouring words: what local word order gives away.

A stronger guesser than `naive_bayes` where order matters. Wang & Manning 2012, "Baselines and Bigrams", section 2.1,
aclanthology.org/P12-2018, found that word pairs help naive Bayes on every task they tried.

The guesser for texts that are to be rewritten: leave the text as it is.

What names, numbers and punctuation give away to a metric: a translation that scores no more has translated nothing.

Guessers that look at nothing but how long two answers are: what a reward model must beat to have learnt more.

People and judges prefer longer answers (Singhal et al. 2023, "A Long Way to Go: Investigating Length Correlations in
RLHF", arxiv.org/abs/2310.03716), or shorter ones where long ones do harm. Lengths are counted in letters; equal ones
count half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.interfaces import Rows, Score
from pipelines.core.registry import BASELINES
from pipelines.tasks.evaluation import NotDefined
from pipelines.tasks.preference.rows import PreferenceRows


def score_baselines(
    names: Iterable[str], score: Score, outputs: int, train: Rows, splits: Mapping[str, Rows]
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Each guesser's scores on the splits (by the suffix of their metric names), and why others have none."""
    scores: dict[str, dict[str, float]] = {}
    skipped: dict[str, str] = {}
    for name in names:
        guess = BASELINES.load(name)
        try:
            scores[name] = {
                f"{metric}{suffix}": value
                for suffix, rows in splits.items()
                for metric, value in score(guess(train, rows, outputs), rows.labels).items()
            }
        except NotDefined as reason:
            skipped[name] = str(reason)
    return scores, skipped


def majority(train: Rows, evaluation: Rows, outputs: int) -> NDArray[Any]:
    """Scores (examples, outputs): each class's share of the training rows, the same for every example."""
    if outputs < 2:
        raise NotDefined("numbers and texts have no most frequent class, and a constant guess tells nothing")
    if train.labels is None or len(train) == 0:
        raise NotDefined("the training rows have no labels to count")
    shares = np.bincount(np.asarray(train.labels, dtype=np.int64), minlength=outputs) / len(train)
    return np.tile(shares, (len(evaluation), 1))


def majority_by_word(train: Rows, evaluation: Rows, outputs: int) -> NDArray[Any]:
    """The guessed ids of each text's tags (texts,) of arrays. Of equally frequent tags the one with the smaller id."""
    known: Any = getattr(train, "words", None)
    asked: Any = getattr(evaluation, "words", None)
    if known is None or asked is None:
        raise NotDefined("only words with a tag each have a most frequent tag")
    if train.labels is None or len(train) == 0:
        raise NotDefined("the training rows have no tags to count")
    of_word: dict[str, Counter[int]] = {}
    every: Counter[int] = Counter()
    tagged: Any = train.labels
    for words, tags in zip(known, tagged, strict=True):
        every.update(tags)
        for word, tag in zip(words, tags, strict=True):
            of_word.setdefault(word, Counter())[tag] += 1
    usual = _most(every)
    best = {word: _most(counter) for word, counter in of_word.items()}
    guesses = np.empty(len(evaluation), dtype=object)
    guesses[:] = [np.array([best.get(word, usual) for word in words], dtype=np.int64) for words in asked]
    return guesses


def _most(counter: Counter[int]) -> int:
    return min(counter, key=lambda tag: (-counter[tag], tag))


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


def naive_bayes_pairs(train: Rows, evaluation: Rows, outputs: int) -> NDArray[Any]:
    """Joint log probabilities (examples, outputs) after counting the words and word pairs of `train`."""
    return by_counts(train, evaluation, outputs, longest=2)


def copy_source(train: Rows, evaluation: Rows, outputs: int) -> NDArray[Any]:
    """The sources themselves, as texts (examples,)."""
    if not train.labels or not isinstance(train.labels[0], str):
        raise NotDefined("only a text that is to become another text can be copied")
    return np.asarray(evaluation.texts, dtype=object)


def longer(train: Any, evaluation: Any, outputs: int) -> NDArray[np.float64]:
    """The longer answer is the better one: scores (pairs, 2), the chosen answer's first."""
    return _lengths(evaluation)


def shorter(train: Any, evaluation: Any, outputs: int) -> NDArray[np.float64]:
    """The shorter answer is the better one: scores (pairs, 2), the chosen answer's first."""
    return -_lengths(evaluation)


def _lengths(rows: Any) -> NDArray[np.float64]:
    if not isinstance(rows, PreferenceRows):
        raise NotDefined("compares two answers by their length, and the task has no pairs of answers")
    return np.array(
        [[len(one.completion), len(other.completion)] for one, other in zip(rows.chosen, rows.rejected, strict=True)],
        dtype=np.float64,
    )
