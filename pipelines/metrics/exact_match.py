"""Exact match: how many texts are their references to the letter, from 0 to 100.

White space around a text makes no difference, and an empty text matches nothing. Where a task has an
`answer_pattern`, what it finds is compared, as for GSM8K (Cobbe et al. 2021, section 4): there an empty text is an
answer without a result.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.metrics.base import paired_texts


def compute(predictions: Any, references: Any, classes: int | None = None) -> dict[str, float]:
    """`{"exact_match": …}` in 0 … 100."""
    return of_counts(counts(predictions, references).sum(axis=0))


def counts(predictions: Any, references: Any) -> NDArray[np.int64]:
    """Whether each example matches, and 1, (examples, 2): the score of a corpus is the ratio of their sums."""
    written, true = paired_texts(predictions, references)
    right = [
        bool(text.strip()) and text.strip() == reference.strip() for text, reference in zip(written, true, strict=True)
    ]
    return np.stack([np.asarray(right, dtype=np.int64), np.ones(len(right), dtype=np.int64)], axis=1)


def of_counts(sums: NDArray[np.int64]) -> dict[str, float]:
    """The score of a corpus with these sums (2,)."""
    return {"exact_match": 100.0 * float(sums[0]) / float(sums[1])}


def signature() -> str:
    """How the score was computed, as publications state it."""
    return "exact_match|case:mixed|space:stripped"


@cache
def _metric() -> type:
    from pipelines.metrics.base import metric_module

    return metric_module(__name__, "ExactMatch", compute, "string", __doc__)


def __getattr__(name: str) -> Any:
    """`ExactMatch`, the same as an `evaluate.Metric`."""
    if name == "ExactMatch":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
