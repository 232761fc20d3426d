"""Entities: precision, recall and F1 of whole entities, and the accuracy of single tags, as seqeval computes them.

Tjong Kim Sang & De Meulder 2003, "CoNLL-2003 shared task", section 2.3, arxiv.org/abs/cs/0306050: an entity is right
only if its first word, its last word and its class are. Tags are IOB2, and read as `conlleval` and seqeval's default
mode read them: `I-X` behind something other than `B-X` or `I-X` begins an entity too. Averages are over entities
("micro").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.metrics.base import Column, CountedMetric

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OUTSIDE = "O"


class Seqeval(CountedMetric):
    """Entities: `{"f1": …, "precision": …, "recall": …, "accuracy": …}` in 0 … 1, of lists of tags, one list a text."""

    values = "tags"
    scores = ("f1", "precision", "recall", "accuracy")

    def counts(self, predictions: Column, references: Column) -> NDArray[np.int64]:
        """(texts, 5): right entities, predicted ones, true ones, right tags, tags."""
        import numpy as np

        predicted, true = _paired(predictions, references)
        return np.array([_counts_of(one, other) for one, other in zip(predicted, true, strict=True)], dtype=np.int64)

    def of_counts(self, sums: NDArray[np.int64]) -> dict[str, float]:
        """The scores of texts whose counts have these sums (5,). What divides by nothing is 0, as in seqeval."""
        both, predicted, true, right, tags = (float(each) for each in sums)
        return {
            "f1": 2 * both / (predicted + true) if predicted + true else 0.0,
            "precision": both / predicted if predicted else 0.0,
            "recall": both / true if true else 0.0,
            "accuracy": right / tags,
        }


def _counts_of(predicted: Sequence[str], true: Sequence[str]) -> tuple[int, int, int, int, int]:
    predicted_entities, true_entities = entities(predicted), entities(true)
    same = sum(one == other for one, other in zip(predicted, true, strict=True))
    both = len(predicted_entities & true_entities)
    return both, len(predicted_entities), len(true_entities), same, len(true)


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """(class, first word, word behind the last) of every entity in a text's tags."""
    spans: set[tuple[str, int, int]] = set()
    begun: tuple[str, int] | None = None
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        inside = prefix in ("B", "I")
        if begun and (not inside or prefix == "B" or kind != begun[0]):
            spans.add((*begun, place))
            begun = None
        if inside and begun is None:
            begun = kind, place
    return spans


def _paired(predictions: Column, references: Column) -> tuple[Sequence[Sequence[str]], Sequence[Sequence[str]]]:
    predicted, true = list(predictions), list(references)
    if len(predicted) != len(true):
        raise ValueError(f"predictions and references must be as many, found {len(predicted)} and {len(true)}")
    if not predicted:
        raise ValueError("there is no text to score")
    for one, other in zip(predicted, true, strict=True):
        for tags in (one, other):
            if isinstance(tags, str) or not hasattr(tags, "__len__") or not all(isinstance(tag, str) for tag in tags):
                raise ValueError(f"predictions and references must be lists of tags, found {str(tags)[:40]}")
        if len(one) != len(other):
            raise ValueError(f"a text has {len(one)} predicted tags but {len(other)} true ones; they must be as many")
    if not any(len(tags) for tags in true):
        raise ValueError("there is no tag to score")
    return predicted, true
