"""ROUGE-L: of all words, the share in the longest sequence that a text and its reference have in common; mean F1, from 0 to 100.

Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries"; see `text_overlap` for what is counted.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pipelines.evaluation.text_overlap import Rouge, shared_order

METRIC = Rouge("rougeL", shared_order)
compute, counts, of_counts, signature = METRIC.compute, METRIC.counts, METRIC.of_counts, METRIC.signature


@cache
def _metric() -> type:
    from pipelines.evaluation.metric_module import metric_module

    return metric_module(__name__, "Rougel", compute, "string", __doc__)


def __getattr__(name: str) -> Any:
    """`Rougel`, the same as an `evaluate.Metric`."""
    if name == "Rougel":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
