"""Entities: precision, recall and F1 of whole entities, and the accuracy of single tags, as seqeval computes them.

Tjong Kim Sang & De Meulder 2003, "CoNLL-2003 shared task", section 2.3, arxiv.org/abs/cs/0306050: an entity is right
only if its first word, its last word and its class are. Tags are IOB2, and read as `conlleval` and seqeval's default
mode read them: `I-X` behind something other than `B-X` or `I-X` begins an entity too. Averages are over entities
("micro").
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

OUTSIDE = "O"


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """(class, first word, word behind the last) of every entity in a text's tags."""
    found: set[tuple[str, int, int]] = set()
    begun: tuple[str, int] | None = None
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        inside = prefix in ("B", "I")
        if begun and (not inside or prefix == "B" or kind != begun[0]):
            found.add((*begun, place))
            begun = None
        if inside and begun is None:
            begun = kind, place
    return found


def counts(predictions: Any, references: Any) -> NDArray[np.int64]:
    """(texts, 5): right entities, predicted ones, true ones, right tags, tags. A corpus scores by their sums."""
    said, right = _paired(predictions, references)
    return np.array([_one(predicted, true) for predicted, true in zip(said, right, strict=True)], dtype=np.int64)


def _one(predicted: Sequence[str], true: Sequence[str]) -> tuple[int, int, int, int, int]:
    found, there = entities(predicted), entities(true)
    same = sum(one == other for one, other in zip(predicted, true, strict=True))
    return len(found & there), len(found), len(there), same, len(true)


def of_counts(sums: NDArray[np.int64]) -> dict[str, float]:
    """The scores of texts whose counts have these sums (5,). What divides by nothing is 0, as in seqeval."""
    both, said, true, right, tags = (float(each) for each in sums)
    return {
        "f1": 2 * both / (said + true) if said + true else 0.0,
        "precision": both / said if said else 0.0,
        "recall": both / true if true else 0.0,
        "accuracy": right / tags,
    }


def compute(predictions: Any, references: Any, classes: int | None = None) -> dict[str, float]:
    """`{"f1": …, "precision": …, "recall": …, "accuracy": …}` in 0 … 1, of lists of tags, one list a text."""
    return of_counts(counts(predictions, references).sum(axis=0))


def _paired(predictions: Any, references: Any) -> tuple[Sequence[Sequence[str]], Sequence[Sequence[str]]]:
    said, right = list(predictions), list(references)
    if len(said) != len(right):
        raise ValueError(f"predictions and references must be as many, found {len(said)} and {len(right)}")
    if not said:
        raise ValueError("there is no text to score")
    for one, other in zip(said, right, strict=True):
        for tags in (one, other):
            if isinstance(tags, str) or not hasattr(tags, "__len__") or not all(isinstance(tag, str) for tag in tags):
                raise ValueError(f"predictions and references must be lists of tags, found {str(tags)[:40]}")
        if len(one) != len(other):
            raise ValueError(f"a text has {len(one)} predicted tags but {len(other)} true ones; they must be as many")
    if not any(len(tags) for tags in right):
        raise ValueError("there is no tag to score")
    return said, right


@cache
def _metric() -> type:
    from pipelines.metrics.base import metric_module

    return metric_module(__name__, "Seqeval", compute, "tags", __doc__)


def __getattr__(name: str) -> Any:
    """`Seqeval`, the same as an `evaluate.Metric`."""
    if name == "Seqeval":
        return _metric()
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
