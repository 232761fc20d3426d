"""chrF: how many runs of one to six characters a corpus of hypotheses shares with its references, from 0 to 100.

Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation", section 2, with recall twice as important as
precision (chrF2), computed by sacrebleu. It needs no words, so it is fair to languages that write long ones.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pipelines.metrics.sacrebleu import CorpusMetric


def _scorer() -> Any:
    """sacrebleu's scorer with its default settings: six characters, no words, recall counts twice."""
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()


METRIC = CorpusMetric("chrf", _scorer)
compute, counts, of_counts, signature = METRIC.compute, METRIC.counts, METRIC.of_counts, METRIC.signature


@cache
def _metric() -> type:
    from pipelines.metrics.base import metric_module

    return metric_module(__name__, "Chrf", compute, "string", __doc__)


def __getattr__(name: str) -> Any:
    """`Chrf`, the same as an `evaluate.Metric`."""
    if name == "Chrf":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
