"""Correlations between predicted and true numbers: Pearson's coefficient, and Spearman's of their ranks.

Where all predictions, or all references, are one number (a single example included), a correlation would be 0 / 0 and
is defined as 0.0: NaN in a score file could be neither compared nor required. The arithmetic is that of
`scipy.stats.pearsonr` but for this case and for the last digit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.metrics.base import Metric, paired_numbers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


class Pearson(Metric):
    """Pearson's correlation coefficient between predicted and true numbers. Metric of GLUE's STS-B.

    Pearson 1895, "Note on regression and inheritance in the case of two parents".
    """

    values = "numbers"
    worst = -1.0

    def compute(self, predictions: ArrayLike, references: ArrayLike, classes: int | None = None) -> dict[str, float]:
        """`{"pearson": …}` in -1 … 1; 0.0 where predictions or references are constant."""
        return {"pearson": correlation(*paired_numbers(predictions, references))}


class Spearmanr(Metric):
    """Spearman's rank correlation between predicted and true numbers. Metric of GLUE's STS-B.

    Spearman 1904, "The proof and measurement of association between two things": Pearson's coefficient of the ranks,
    where equal numbers share the mean of their ranks.
    """

    values = "numbers"
    worst = -1.0

    def compute(self, predictions: ArrayLike, references: ArrayLike, classes: int | None = None) -> dict[str, float]:
        """`{"spearmanr": …}` in -1 … 1; 0.0 where predictions or references are constant."""
        from scipy.stats import rankdata

        predicted, true = paired_numbers(predictions, references)
        return {"spearmanr": correlation(rankdata(predicted), rankdata(true))}


def correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Pearson's r of two lists of the same length; 0.0 where one of them is constant."""
    import numpy as np

    if x.min() == x.max() or y.min() == y.max():
        return 0.0
    return float(np.clip(_direction(x) @ _direction(y), -1.0, 1.0))


def _direction(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The centred values as a vector of length 1."""
    import numpy as np

    scaled = values / np.abs(values).max()  # before anything is squared: no overflow, no underflow
    centred: NDArray[np.float64] = scaled - scaled.mean()
    length = float(np.linalg.norm(centred))
    return centred / length if length > 0 else centred
