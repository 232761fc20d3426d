"""BLEU: how many runs of one to four words a corpus of hypotheses shares with its references, from 0 to 100.

Papineni et al. 2002, "BLEU: a Method for Automatic Evaluation of Machine Translation", computed by sacrebleu with its
own tokenisation (Post 2018, "A Call for Clarity in Reporting BLEU Scores", arxiv.org/abs/1804.08771), so that scores
compare with published ones that have the same signature.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pipelines.metrics.sacrebleu import CorpusMetric


def _scorer() -> Any:
    """sacrebleu's scorer with its default settings: case matters, tokenizer 13a, exponential smoothing."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU()


METRIC = CorpusMetric("bleu", _scorer)
compute, counts, of_counts, signature = METRIC.compute, METRIC.counts, METRIC.of_counts, METRIC.signature


@cache
def _metric() -> type:
    from pipelines.metrics.base import metric_module

    return metric_module(__name__, "Bleu", compute, "string", __doc__)


def __getattr__(name: str) -> Any:
    """`Bleu`, the same as an `evaluate.Metric`."""
    if name == "Bleu":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
