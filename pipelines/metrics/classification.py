"""Metrics of classes: accuracy, F1 and Matthews' correlation coefficient, and the confusion matrix behind them.

scikit-learn computes the same; the tests hold these against it. They stay here because every score is computed a
thousand times for its interval, which scikit-learn's checks of its arguments make forty times slower, and because its
Matthews' coefficient differs in the last digit from what was reported before.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from pipelines.metrics.base import Metric, paired_labels

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


class Accuracy(Metric):
    """The fraction of examples whose class was predicted. Metric of GLUE's SST-2, MNLI, QNLI, RTE and WNLI."""

    values = "classes"

    def compute(self, predictions: ArrayLike, references: ArrayLike, classes: int | None = None) -> dict[str, float]:
        """`{"accuracy": …}` in 0 … 1. The number of `classes` makes no difference to it."""
        import numpy as np

        predicted, true = paired_labels(predictions, references)
        return {"accuracy": float(np.mean(predicted == true))}


class F1(Metric):
    """The harmonic mean of precision and recall. Metric of GLUE's MRPC and QQP.

    Two classes: the F1 of class 1, as GLUE scores it. More: the mean over classes, each weighing the same ("macro"),
    over those that occur among references or predictions; van Rijsbergen 1979, "Information Retrieval", chapter 7. A
    class that is never predicted rightly has F1 0, also where it is neither predicted nor true (0 / 0).
    """

    values = "classes"

    def compute(self, predictions: ArrayLike, references: ArrayLike, classes: int | None = None) -> dict[str, float]:
        """`{"f1": …}` in 0 … 1, binary for two `classes`, macro beyond; without, binary if every id is 0 or 1."""
        import numpy as np

        predicted, true = paired_labels(predictions, references)
        if classes is None and set(np.unique(np.concatenate([predicted, true])).tolist()) <= {0, 1}:
            classes = 2
        cells = confusion(predicted, true, classes)
        right, occurrences = np.diag(cells), cells.sum(axis=0) + cells.sum(axis=1)  # predicted plus true, per class
        per_class = 2 * right / np.maximum(occurrences, 1)
        return {"f1": float(per_class[1] if classes == 2 else per_class[occurrences > 0].mean())}


class MatthewsCorrelation(Metric):
    """Matthews' correlation coefficient between predicted and true classes. Metric of GLUE's CoLA.

    Matthews 1975, "Comparison of the predicted and observed secondary structure of T4 phage lysozyme"; for any number
    of classes the R_K of Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation
    coefficient", equation 8. Where all predictions, or all references, are one class, it would be 0 / 0 and is defined
    as 0.0: such a guesser knows nothing.
    """

    values = "classes"
    worst = -1.0

    def compute(self, predictions: ArrayLike, references: ArrayLike, classes: int | None = None) -> dict[str, float]:
        """`{"matthews_correlation": …}` in -1 … 1; 0.0 where predictions or references are constant."""
        import numpy as np

        cells = confusion(*paired_labels(predictions, references), classes).astype(np.float64)
        predicted, true, examples = cells.sum(axis=0), cells.sum(axis=1), cells.sum()
        together = float(np.trace(cells) * examples - predicted @ true)
        of_predicted = float(examples**2 - predicted @ predicted)
        of_true = float(examples**2 - true @ true)
        if of_predicted == 0 or of_true == 0:
            return {"matthews_correlation": 0.0}
        return {"matthews_correlation": min(1.0, max(-1.0, together / sqrt(of_predicted) / sqrt(of_true)))}


def confusion(
    predictions: NDArray[np.int64], references: NDArray[np.int64], classes: int | None = None
) -> NDArray[np.int64]:
    """The confusion matrix: counts of shape (true class, predicted class).

    With `classes`, rows and columns are the ids 0 … classes - 1 (ValueError for any other id); without, they are the
    ids that occur in either list, in ascending order.
    """
    import numpy as np

    if classes is None:
        ids, both = np.unique(np.concatenate([predictions, references]), return_inverse=True)
        predictions, references = both[: len(predictions)], both[len(predictions) :]
        classes = len(ids)
    elif min(predictions.min(), references.min()) < 0 or max(predictions.max(), references.max()) >= classes:
        raise ValueError(f"a class id lies outside 0 … {classes - 1}")
    cells: NDArray[np.int64] = np.bincount(references * classes + predictions, minlength=classes * classes)
    return cells.reshape(classes, classes)
