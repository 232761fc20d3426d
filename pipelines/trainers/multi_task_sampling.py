"""The order in which examples of several tasks are seen: a function of the seed, the epoch, and which tasks still
learn.

An optimizer step is made of parts, and a part is of one task (MT-DNN, Liu et al. 2019, arxiv.org/abs/1901.11504,
algorithm 1). Every task has a stream of its own: pass after pass over its examples, each pass in an order of its own.
An epoch takes as many parts from each stream as the task's share says, and goes on where the epoch before it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from pipelines.trainers.multi_task import Sampling, apportioned, parts_of_epoch
from pipelines.trainers.trainer import order

INTERLEAVING = 0x317E
STREAM = 0x57EA


@dataclass
class TaskMixture:
    """Several tasks' examples as one data set, seen through draws.

    A draw d >= 0 is example d mod n of all n examples, in its visit d div n; -1 - d is example d as mere filling.
    """

    parts: Sequence[Any]
    """The examples of each task: `len`, `[position]`, `.lengths`."""
    marked: Sequence[bool]
    """Whether each task's examples are given their draw."""
    starts: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.starts = np.cumsum([0, *(len(part) for part in self.parts)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, draw: int) -> dict[str, Any]:
        padding = draw < 0
        draw = -1 - draw if padding else draw
        position = draw % len(self)
        task = int(np.searchsorted(self.starts, position, side="right")) - 1
        example = dict(self.parts[task][position - int(self.starts[task])]) | {"task": task}
        if self.marked[task]:
            example["draw"] = draw
        if padding:
            example["padding"] = True
        return example


class MixtureSampler(Sampler[int]):
    """Yields the draws of an epoch, part by part. `epoch` is set by the loop; `left` says which tasks are no
    longer seen."""

    def __init__(
        self,
        mixture: TaskMixture,
        ids: Sequence[str],
        sampling: Sampling,
        *,
        part: int,
        tasks_per_step: int,
        seed: int,
        epochs: int,
        most: int | None = None,
        by_length: bool = True,
    ) -> None:
        self.mixture = mixture
        self.ids = list(ids)
        self.sampling = sampling
        self.part = part
        self.tasks_per_step = tasks_per_step
        self.seed = seed
        self.epochs = epochs
        self.most = most
        self.by_length = by_length
        self.epoch = 0
        self.left: dict[str, int] = {}
        """Task -> the first epoch that it is not part of."""
        sizes = [min(len(part), most or len(part)) for part in mixture.parts]
        self.parts = parts_of_epoch(sizes, self.part, tasks_per_step)
        self.sizes = sizes

    def counts(self, epoch: int) -> list[int]:
        """Parts of each task in an epoch."""
        here = [self.left.get(name, epoch + 1) > epoch for name in self.ids]
        if not any(here):
            here = [True] * len(here)
        weights = self.sampling.weights(self.sizes, self.ids, epoch, self.epochs)
        present = [weight if stays else 0.0 for weight, stays in zip(weights, here, strict=True)]
        return apportioned(self.parts, [weight / sum(present) for weight in present])

    def tasks(self, epoch: int) -> list[int]:
        """The task of each part of an epoch; within a step all differ, as long as there are enough."""
        counts = np.array(self.counts(epoch))
        generator = np.random.default_rng([self.seed, epoch, INTERLEAVING])
        if self.tasks_per_step == 1:
            order: list[int] = generator.permutation(np.repeat(np.arange(len(counts)), counts)).tolist()
            return order
        chosen: list[int] = []
        for _ in range(self.parts // self.tasks_per_step):
            step: list[int] = []
            while len(step) < self.tasks_per_step:
                free = counts.copy()
                free[step] = 0
                free = free if free.any() else counts
                # the fullest must not be left over: what remains has to fit into steps of different tasks
                noise = generator.random(len(free))
                task = int(np.argmax(np.where(free > 0, free + noise, -1)))
                counts[task] -= 1
                step.append(task)
            chosen += generator.permutation(step).tolist()
        return chosen

    def draws(self, task: int, begin: int, parts: int) -> NDArray[np.int64]:
        """Draws (parts, part size) of a task's stream from its part number `begin` on; filling at the end of each
        pass."""
        size, start, everything = len(self.mixture.parts[task]), int(self.mixture.starts[task]), len(self.mixture)
        per_pass = -(-size // self.part)
        rows = []
        for visit in range(begin // per_pass, (begin + parts - 1) // per_pass + 1 if parts else 0):
            seed = int(np.random.default_rng([self.seed, STREAM, task]).integers(2**31))
            lengths = getattr(self.mixture.parts[task], "lengths", None) if self.by_length else None
            places = start + order(seed, visit, size, self.part, lengths)
            filled = np.full(per_pass * self.part, -1 - int(places[-1]), dtype=np.int64)
            filled[:size] = visit * everything + places
            rows.append(filled.reshape(per_pass, self.part))
        if not rows:
            return np.empty((0, self.part), dtype=np.int64)
        first = begin % per_pass
        draws: NDArray[np.int64] = np.concatenate(rows)[first : first + parts]
        return draws

    def __iter__(self) -> Iterator[int]:
        before = np.zeros(len(self.ids), dtype=np.int64)
        for epoch in range(self.epoch):
            before += self.counts(epoch)
        counts = self.counts(self.epoch)
        streams = [self.draws(task, int(before[task]), counts[task]) for task in range(len(self.ids))]
        taken = [0] * len(self.ids)
        for task in self.tasks(self.epoch):
            yield from streams[task][taken[task]].tolist()
            taken[task] += 1

    def __len__(self) -> int:
        return self.parts * self.part


def tasks_left(scores: Mapping[str, Sequence[float]], patience: int) -> list[str]:
    """Tasks whose score has not been better than before for `patience` evaluations in a row."""
    left = []
    for name, values in scores.items():
        best = max(range(len(values)), key=lambda position: (values[position], -position), default=0)
        if len(values) - 1 - best >= patience:
            left.append(name)
    return left
