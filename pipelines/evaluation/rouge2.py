"""ROUGE-2: of runs of two words, the share that a text and its reference have in common; mean F1, from 0 to 100.

Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries"; see `text_overlap` for what is counted.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from pipelines.evaluation.text_overlap import Rouge, shared_runs

METRIC = Rouge("rouge2", partial(shared_runs, length=2))
compute, counts, of_counts, signature = METRIC.compute, METRIC.counts, METRIC.of_counts, METRIC.signature


@cache
def _metric() -> type:
    from pipelines.evaluation.metric_module import metric_module

    return metric_module(__name__, "Rouge2", compute, "string", __doc__)


def __getattr__(name: str) -> Any:
    """`Rouge2`, the same as an `evaluate.Metric`."""
    if name == "Rouge2":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
