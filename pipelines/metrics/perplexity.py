"""Perplexity and bits per byte: sums of each document, the figures that follow, and their intervals."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.metrics.statistics import LEVEL, RESAMPLES, percentile_interval

Floats = npt.NDArray[np.float64]
Sums = Mapping[str, float]
"""Of some documents, by what was added up: `bits`, `tokens`, …"""


@dataclass(frozen=True)
class Tally:
    """Sums of each document, one column a quantity."""

    documents: npt.NDArray[np.int64]
    """Which documents were measured (documents,)."""
    columns: Mapping[str, Floats]
    """By quantity (documents,)."""

    @classmethod
    def of(cls, documents: npt.NDArray[np.int64], values: Mapping[str, Floats]) -> Tally:
        """The sums of single values (items,) over the documents (items,) that they belong to."""
        distinct, place = np.unique(documents, return_inverse=True)
        sums = {name: np.bincount(place, weights=each, minlength=len(distinct)) for name, each in values.items()}
        return cls(distinct, {name: each.astype(np.float64) for name, each in sums.items()})

    def figures(self, compute: Callable[[Sums], dict[str, float]]) -> dict[str, float]:
        """What `compute` makes of the sums over all documents."""
        return compute({name: float(column.sum()) for name, column in self.columns.items()})

    def intervals(
        self, compute: Callable[[Sums], dict[str, float]], seed: int, resamples: int = RESAMPLES, level: float = LEVEL
    ) -> dict[str, tuple[float, float]]:
        """Percentile bootstrap intervals over documents: as many are drawn as there are, with replacement.

        The same for the same seed. A figure that is infinite in some draws has none.
        """
        random = np.random.default_rng(seed)
        table = np.stack(list(self.columns.values()))  # (quantities, documents)
        count = table.shape[1]
        draws: dict[str, list[float]] = {}
        for _ in range(resamples):
            times = np.bincount(random.integers(count, size=count), minlength=count)
            for name, value in compute(dict(zip(self.columns, table @ times, strict=True))).items():
                draws.setdefault(name, []).append(value)
        return {name: percentile_interval(each, level) for name, each in draws.items() if np.isfinite(each).all()}


def likelihood(sums: Sums) -> dict[str, float]:
    """Bits per byte of the predicted text, and perplexity per token: infinite beyond what a float holds."""
    each = sums["bits"] / sums["tokens"]
    perplexity = 2.0**each if each < sys.float_info.max_exp else math.inf
    return {"bits_per_byte": sums["bits"] / sums["bytes"], "perplexity": perplexity}


def completion_likelihood(sums: Sums) -> dict[str, float]:
    """`likelihood` of answers, and the share of their tokens that the model finds most probable."""
    return likelihood(sums) | {"mean_token_accuracy": sums["right"] / sums["tokens"]}


def hidden(sums: Sums) -> dict[str, float]:
    """Bits per byte of the hidden tokens, the share of them that was named, and of the pairs that were judged
    rightly.
    """
    scores = {"hidden_bits_per_byte": sums["bits"] / sums["bytes"], "accuracy": sums["right"] / sums["tokens"]}
    return scores | ({"pair_accuracy": sums["pairs_right"] / sums["pairs"]} if sums.get("pairs") else {})


def detection(sums: Sums) -> dict[str, float]:
    """The share of the tokens that was judged rightly, and F1 of the replaced ones."""
    f1 = 2 * sums["found"] / max(2 * sums["found"] + sums["missed"] + sums["false_alarms"], 1.0)
    return {"accuracy": sums["right"] / sums["tokens"], "f1": f1}
