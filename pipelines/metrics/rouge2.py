"""ROUGE-2: of runs of two words, the share that a text and its reference have in common; mean F1, 0 to 100.

Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries"; see `text_overlap` for what is counted.
"""

from __future__ import annotations

from functools import partial

from pipelines.metrics.base import on_demand
from pipelines.metrics.rouge import Rouge, shared_runs

METRIC = Rouge("rouge2", partial(shared_runs, length=2))
compute, counts, of_counts, signature = METRIC.compute, METRIC.counts, METRIC.of_counts, METRIC.signature
__getattr__ = on_demand(__name__, "Rouge2", compute, "string", __doc__)
