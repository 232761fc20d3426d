"""chrF: how many runs of one to six characters a corpus of hypotheses shares with its references, from 0 to 100.

Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation", section 2, with recall twice as important as
precision (chrF2), computed by sacrebleu. It needs no words, so it is fair to languages that write long ones.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.evaluation.paired_texts import paired_texts


@cache
def scorer() -> Any:
    """sacrebleu's scorer with its default settings: six characters, no words, recall counts twice."""
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()


def compute(predictions: Any, references: Any, classes: int | None = None) -> dict[str, float]:
    """`{"chrf": …}` of one reference each, in 0 … 100."""
    return of_counts(counts(predictions, references).sum(axis=0))


def counts(predictions: Any, references: Any) -> NDArray[np.int64]:
    """What chrF counts in each example, (examples, counts): the counts of a corpus are their sums."""
    written, true = paired_texts(predictions, references)
    return np.asarray(scorer()._extract_corpus_statistics(written, [true]), dtype=np.int64)


def of_counts(sums: NDArray[np.int64]) -> dict[str, float]:
    """The score of a corpus with these sums (counts,)."""
    return {"chrf": float(scorer()._compute_score_from_stats(sums.tolist()).score)}


def signature() -> str:
    """How the score was computed, as publications state it."""
    scorer().corpus_score([""], [[""]])  # it only knows how many references there are once it has scored
    return str(scorer().get_signature())


@cache
def _metric() -> type:
    from pipelines.evaluation.metric_module import metric_module

    return metric_module(__name__, "Chrf", compute, "string", __doc__)


def __getattr__(name: str) -> Any:
    """`Chrf`, the same as an `evaluate.Metric`."""
    if name == "Chrf":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
