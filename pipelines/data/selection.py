"""Which training rows are set aside to select models by, and to choose what else must not be chosen on the reported split.

A tenth of the rows, at most 2,000, drawn by the stage's seed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SELECTION_SHARE = 0.1
SELECTION_MOST = 2000


def drawn(count: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(numbers of the rows that are trained on, in the order drawn; of those set aside, ascending) of `count` rows, at least two."""
    aside = min(max(1, round(count * SELECTION_SHARE)), SELECTION_MOST)
    order = np.random.default_rng([seed, 0x5E1EC7]).permutation(count)
    return order[aside:], np.sort(order[:aside])
