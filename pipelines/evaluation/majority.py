"""The majority guesser: always the class that is most frequent in the training rows.

The score to beat first: a model that does not has learnt nothing that its scores could show.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.evaluation.baselines import NotDefined
from pipelines.protocols import Rows


def majority(train: Rows, evaluation: Rows, outputs: int) -> NDArray[Any]:
    """Scores (examples, outputs): each class's share of the training rows, the same for every example."""
    if outputs < 2:
        raise NotDefined("numbers and texts have no most frequent class, and a constant guess tells nothing")
    if train.labels is None or len(train) == 0:
        raise NotDefined("the training rows have no labels to count")
    shares = np.bincount(np.asarray(train.labels, dtype=np.int64), minlength=outputs) / len(train)
    return np.tile(shares, (len(evaluation), 1))
