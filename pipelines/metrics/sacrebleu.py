"""BLEU and chrF by sacrebleu: counts that each example adds to, and one score of their sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.metrics.base import paired_texts


@dataclass(frozen=True)
class CorpusMetric:
    """One of sacrebleu's metrics, with one reference for each hypothesis and scores in 0 … 100."""

    name: str
    make: Callable[[], Any]
    """Builds sacrebleu's scorer, which is imported only then."""

    @cached_property
    def scorer(self) -> Any:
        """sacrebleu's scorer, built once."""
        return self.make()

    def compute(self, predictions: Any, references: Any, classes: int | None = None) -> dict[str, float]:
        """The score of a corpus, under the metric's name."""
        return self.of_counts(self.counts(predictions, references).sum(axis=0))

    def counts(self, predictions: Any, references: Any) -> NDArray[np.int64]:
        """What is counted in each example, (examples, counts): the counts of a corpus are their sums."""
        written, true = paired_texts(predictions, references)
        return np.asarray(self.scorer._extract_corpus_statistics(written, [true]), dtype=np.int64)

    def of_counts(self, sums: NDArray[np.int64]) -> dict[str, float]:
        """The score of a corpus with these sums (counts,), under the metric's name."""
        return {self.name: float(self.scorer._compute_score_from_stats(sums.tolist()).score)}

    def signature(self) -> str:
        """How the score was computed, as publications state it."""
        self.scorer.corpus_score([""], [[""]])  # it only knows how many references there are once it has scored
        return str(self.scorer.get_signature())
