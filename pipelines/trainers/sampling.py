"""The order in which examples are seen: a pure function of the seed and the epoch.

A run that is killed and resumed must see the batches it would have seen. Orders drawn from the global generator break
that in later epochs, so every order here is computed from (seed, epoch) alone. Examples of similar length share a
batch, which leaves little padding; the batches themselves come in random order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

MEGABATCH = 50
"""Batches that are sorted together: enough for tight lengths, few enough to keep the order random."""


def order(seed: int, epoch: int, examples: int, batch_size: int, lengths: np.ndarray | None = None) -> np.ndarray:
    """A permutation of `range(examples)`; with `lengths`, neighbours within a batch have similar ones.

    `batch_size` is the number of examples of one optimizer step over all processes, so that the order does not
    depend on how many processes share the work.
    """
    generator = np.random.default_rng([seed, epoch])
    shuffled = generator.permutation(examples)
    if lengths is None:
        return shuffled
    window = MEGABATCH * batch_size
    whole = examples - examples % batch_size
    batches = []
    for start in range(0, whole, window):
        part = shuffled[start : min(start + window, whole)]
        batches.append(part[np.argsort(-lengths[part], kind="stable")].reshape(-1, batch_size))
    if not batches:
        return shuffled
    stacked = np.concatenate(batches)
    return np.concatenate([stacked[generator.permutation(len(stacked))].reshape(-1), shuffled[whole:]])


PADDING = -1
"""The draw of an example that only fills a batch up and must not be learnt from."""


class EpochSampler(Sampler[int]):
    """Yields draws: `epoch * examples + index`. A draw names one example in one epoch, and nothing else ever.

    `epoch` is set by the loop at the start of every epoch, which also holds after batches were skipped. Processes that
    share an epoch need equally many batches: the last ones are filled up with PADDING to a multiple of `shared`, where
    accelerate would fill them with the epoch's first examples and count these twice.
    """

    def __init__(
        self, examples: int, batch_size: int, seed: int, lengths: np.ndarray | None = None, shared: int = 1
    ) -> None:
        self.examples = examples
        self.batch_size = batch_size
        self.seed = seed
        self.lengths = lengths
        self.epoch = 0
        self.fill = -examples % shared

    def __iter__(self) -> Iterator[int]:
        base = self.epoch * self.examples
        draws = (base + order(self.seed, self.epoch, self.examples, self.batch_size, self.lengths)).tolist()
        return iter([*draws, *[PADDING] * self.fill])

    def __len__(self) -> int:
        return self.examples + self.fill
