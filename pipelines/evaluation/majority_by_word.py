"""The guesser for tags: each word's most frequent tag in the training rows, of unknown words the most frequent of all.

The baseline of part-of-speech tagging since Charniak et al. 1993, "Equations for Part-of-Speech Tagging", section 3: about
nine of ten English words are right. For entities see Tjong Kim Sang & De Meulder 2003, section 3.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.evaluation.baselines import NotDefined
from pipelines.protocols import Rows


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
