"""ROUGE-L: of all words, the share in the longest sequence that two texts have in common; mean F1, 0 to 100.

Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries"; see `text_overlap` for what is counted.
"""

from __future__ import annotations

from pipelines.metrics.base import on_demand
from pipelines.metrics.rouge import Rouge, shared_order

METRIC = Rouge("rougeL", shared_order)
compute, counts, of_counts, signature = METRIC.compute, METRIC.counts, METRIC.of_counts, METRIC.signature
__getattr__ = on_demand(__name__, "Rougel", compute, "string", __doc__)
