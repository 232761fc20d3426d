"""ROUGE: the share that a text and its reference have in common; mean F1 over the texts, from 0 to 100.

Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", sections 2 and 3: ROUGE-1 and ROUGE-2 count runs of
one and of two words, ROUGE-L the longest sequence of words in order. The tokens are those of Google's `rouge_score`:
lower case, and words of the letters a to z and digits; no stemming.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pipelines.core.text_similarity import shared_order, shared_runs, words
from pipelines.metrics.base import Column, CountedMetric, paired_texts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Rouge(CountedMetric):
    """One of the ROUGE metrics, with one reference for each text and scores in 0 … 100."""

    values = "texts"
    best = 100.0
    name: ClassVar[str]

    def of_pair(self, text: Sequence[str], reference: Sequence[str]) -> float:
        """F1 of the words of a text and those of its reference."""
        raise NotImplementedError

    def counts(self, predictions: Column, references: Column) -> NDArray[np.float64]:
        """F1 and 1 for each example, (examples, 2): the score of a corpus is the ratio of their sums."""
        import numpy as np

        written, true = paired_texts(predictions, references)
        scores = [self.of_pair(words(text), words(reference)) for text, reference in zip(written, true, strict=True)]
        return np.stack([np.asarray(scores), np.ones(len(scores))], axis=1)

    def of_counts(self, sums: NDArray[np.float64]) -> dict[str, float]:
        return {self.name: 100.0 * float(sums[0]) / float(sums[1])}

    def signature(self) -> str:
        return f"{self.name}|tokens:rouge_score|stemming:no|F1"


class Rouge1(Rouge):
    """ROUGE-1: of single words, the share that a text and its reference have in common."""

    name = "rouge1"

    def of_pair(self, text: Sequence[str], reference: Sequence[str]) -> float:
        return shared_runs(text, reference, length=1)


class Rouge2(Rouge):
    """ROUGE-2: of runs of two words, the share that a text and its reference have in common."""

    name = "rouge2"

    def of_pair(self, text: Sequence[str], reference: Sequence[str]) -> float:
        return shared_runs(text, reference, length=2)


class Rougel(Rouge):
    """ROUGE-L: of all words, the share in the longest sequence that a text and its reference have in common."""

    name = "rougeL"

    def of_pair(self, text: Sequence[str], reference: Sequence[str]) -> float:
        return shared_order(text, reference)
