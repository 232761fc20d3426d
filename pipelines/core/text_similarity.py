"""How alike two texts are, from 0 to 1: edit distance, BLEU, GLEU, METEOR and ROUGE of one text and one reference.

fuzzy_match    twice the characters of the longest common subsequence over those of both texts: the ratio of rapidfuzz
bleu           sacrebleu's sentence BLEU with its effective order, over 100
gleu           Wu et al. 2016, "Google's Neural Machine Translation System", section 5.2, arxiv.org/abs/1609.08144
meteor         Banerjee and Lavie 2005, aclanthology.org/W05-0909, by nltk: equal words and equal stems. WordNet's
               synonyms, its third step, are left out, so that a score does not depend on what was downloaded
rouge_1 … 5    Lin 2004, "ROUGE", section 2: F1 of the runs of so many words
rouge_l        section 3 there: F1 of the longest common subsequence of words

ROUGE's words are those of Google's `rouge_score` without stemming; GLEU's and METEOR's are runs of letters and digits,
and single signs, in lower case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Literal

Similarity = Literal[
    "fuzzy_match", "bleu", "gleu", "meteor", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l"
]
LONGEST = 20_000
"""Characters of a text that are compared; the rest is not looked at."""
METEOR_WORDS = 1000
"""Words that METEOR aligns: its time grows with their square."""
WORDS = re.compile(r"[a-z0-9]+")
WORDS_AND_SIGNS = re.compile(r"\w+|[^\w\s]")
GLEU_RUN = 4


class NotInstalled(RuntimeError):
    """A library that a metric needs is missing; one sentence."""


def similarity(metric: Similarity, text: str, reference: str) -> float:
    """How alike the two are, from 0 to 1. Raises NotInstalled."""
    text, reference = text[:LONGEST], reference[:LONGEST]
    if metric == "fuzzy_match":
        both = len(text) + len(reference)
        return 2 * longest_common(text, reference) / both if both else 1.0
    if metric == "bleu":
        return bleu(text, reference)
    if metric == "gleu":
        return gleu(signs_and_words(text), signs_and_words(reference))
    if metric == "meteor":
        return meteor(signs_and_words(text), signs_and_words(reference))
    if metric == "rouge_l":
        return shared_order(words(text), words(reference))
    return shared_runs(words(text), words(reference), length=int(metric.removeprefix("rouge_")))


def words(text: str) -> list[str]:
    """The words of a text, as ROUGE counts them."""
    return WORDS.findall(text.lower())


def signs_and_words(text: str) -> list[str]:
    """The words of a text and the signs between them."""
    return WORDS_AND_SIGNS.findall(text.lower())


def bleu(text: str, reference: str) -> float:
    """Sentence BLEU: runs of one to four words, as many as there are, smoothed; Post 2018, arxiv.org/abs/1804.08771."""
    from sacrebleu.metrics.bleu import BLEU

    return min(1.0, float(BLEU(effective_order=True).sentence_score(text, [reference]).score) / 100)


def gleu(text: Sequence[str], reference: Sequence[str]) -> float:
    """The smaller of precision and recall of all runs of one to four words."""
    counts = [
        Counter(tuple(each[at : at + size]) for size in range(1, GLEU_RUN + 1) for at in range(len(each) - size + 1))
        for each in (text, reference)
    ]
    most = max(counts[0].total(), counts[1].total())
    return (counts[0] & counts[1]).total() / most if most else 0.0


def meteor(text: Sequence[str], reference: Sequence[str]) -> float:
    """The harmonic mean of precision and recall, recall nine times as heavy, less where the words stand apart.

    Raises NotInstalled.
    """
    try:
        from nltk.translate.meteor_score import single_meteor_score  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise NotInstalled(
            "meteor needs the package nltk, which is not installed; install finery[graders], or take another metric"
        ) from None
    if not text or not reference:
        return 0.0
    return float(single_meteor_score(reference[:METEOR_WORDS], text[:METEOR_WORDS], wordnet=_NoSynonyms()))


class _NoSynonyms:
    """Stands in for WordNet."""

    def synsets(self, word: str) -> list[object]:
        return []


def shared_runs(one: Sequence[str], other: Sequence[str], length: int) -> float:
    """F1 of the runs of `length` words; each counts as often as both texts have it."""
    first, second = (
        Counter(tuple(text[at : at + length]) for at in range(len(text) - length + 1)) for text in (one, other)
    )
    return f1((first & second).total(), first.total(), second.total())


def shared_order(one: Sequence[str], other: Sequence[str]) -> float:
    """F1 of the longest common subsequence."""
    return f1(longest_common(one, other), len(one), len(other))


def longest_common(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Length of the longest sequence that both contain in order, gaps allowed: of words, or of a text's characters.

    One bit for each word of `one`, one addition for each word of `other` (Hyyrö 2004, "Bit-Parallel LCS-length
    Computation Revisited", section 3).
    """
    places: dict[Hashable, int] = {}
    for at, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << at
    every = (1 << len(one)) - 1
    left = every
    for word in other:
        matched = left & places.get(word, 0)
        left = ((left + matched) | (left - matched)) & every
    return len(one) - left.bit_count()


def f1(shared: int, one: int, other: int) -> float:
    """The harmonic mean of shared / one and shared / other; 0 where nothing is shared."""
    return 2 * shared / (one + other) if shared else 0.0
