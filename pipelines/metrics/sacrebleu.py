"""BLEU and chrF, computed by sacrebleu with its default settings: one reference for each text, scores in 0 … 100.

Post 2018, "A Call for Clarity in Reporting BLEU Scores", arxiv.org/abs/1804.08771: scores compare with published ones
that have the same signature. sacrebleu computes the score of a corpus from sums over its examples, which resampling
uses.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from pipelines.metrics.base import Column, CountedMetric, paired_texts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from sacrebleu.metrics.base import Metric as Scorer


class CorpusMetric(CountedMetric):
    """One of sacrebleu's metrics."""

    values = "texts"
    best = 100.0
    name: ClassVar[str]

    def make(self) -> Scorer:
        """sacrebleu's scorer, which is imported only then."""
        raise NotImplementedError

    @cached_property
    def scorer(self) -> Scorer:
        """The scorer, made once."""
        return self.make()

    def counts(self, predictions: Column, references: Column) -> NDArray[np.int64]:
        import numpy as np

        written, true = paired_texts(predictions, references)
        return np.asarray(self.scorer._extract_corpus_statistics(written, [true]), dtype=np.int64)

    def of_counts(self, sums: NDArray[np.int64]) -> dict[str, float]:
        return {self.name: float(self.scorer._compute_score_from_stats(sums.tolist()).score)}

    def signature(self) -> str:
        self.scorer.corpus_score([""], [[""]])  # it only knows how many references there are once it has scored
        return str(self.scorer.get_signature())


class Bleu(CorpusMetric):
    """BLEU: how many runs of one to four words a corpus of texts shares with its references, from 0 to 100.

    Papineni et al. 2002, "BLEU: a Method for Automatic Evaluation of Machine Translation". Case matters, tokenizer
    13a, exponential smoothing.
    """

    name = "bleu"

    def make(self) -> Scorer:
        from sacrebleu.metrics.bleu import BLEU

        return BLEU()


class Chrf(CorpusMetric):
    """chrF: how many runs of one to six characters a corpus of texts shares with its references, from 0 to 100.

    Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation", section 2, with recall twice as
    important as precision (chrF2). It needs no words, so it is fair to languages that write long ones.
    """

    name = "chrf"

    def make(self) -> Scorer:
        from sacrebleu.metrics.chrf import CHRF

        return CHRF()
