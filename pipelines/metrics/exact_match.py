"""Exact match: how many texts are their references to the letter, from 0 to 100.

White space around a text makes no difference, and an empty text matches nothing. Where a task has an `answer_pattern`,
what it finds is compared, as for GSM8K (Cobbe et al. 2021, section 4): there an empty text is an answer without a
result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.metrics.base import Column, CountedMetric, paired_texts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ExactMatch(CountedMetric):
    """How many texts are their references to the letter: `{"exact_match": …}` in 0 … 100."""

    values = "texts"
    best = 100.0

    def counts(self, predictions: Column, references: Column) -> NDArray[np.int64]:
        """Whether each example matches, and 1, (examples, 2): the score of a corpus is the ratio of their sums."""
        import numpy as np

        written, true = paired_texts(predictions, references)
        right = [
            bool(text.strip()) and text.strip() == reference.strip()
            for text, reference in zip(written, true, strict=True)
        ]
        return np.stack([np.asarray(right, dtype=np.int64), np.ones(len(right), dtype=np.int64)], axis=1)

    def of_counts(self, sums: NDArray[np.int64]) -> dict[str, float]:
        return {"exact_match": 100.0 * float(sums[0]) / float(sums[1])}

    def signature(self) -> str:
        return "exact_match|case:mixed|space:stripped"
