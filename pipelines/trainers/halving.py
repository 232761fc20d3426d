"""Batches that are halved when memory runs out: `per_device_train_batch_size: auto`.

A batch that does not fit is computed in two halves, in four quarters and so on, whose gradients add up to the same: the
losses of a step are divided by the items of the whole step, so that neither the effective batch nor the order of
examples changes. When memory runs out, gradients may be half written; they are cleared, and the batches of the step so
far are computed again. What has been halved stays so, after a resume too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pipelines.core.errors import OutOfMemory, understood

Batch = dict[str, Any]


def rows_of(batch: Mapping[str, Any]) -> int:
    """Examples of a batch: the first dimension of its first tensor."""
    return next(
        (
            rows_of(value) if isinstance(value, Mapping) else len(value)
            for value in batch.values()
            if isinstance(value, Mapping | Tensor)
        ),
        0,
    )


def parts_of(batch: Mapping[str, Any], parts: int) -> list[Batch]:
    """A batch in up to so many parts of about the same number of examples, in their order."""
    rows = rows_of(batch)
    size = max(1, -(-rows // parts))
    return [_slice(batch, start, start + size, rows) for start in range(0, rows, size)]


def _slice(batch: Mapping[str, Any], start: int, end: int, rows: int) -> Batch:
    def of(value: Any) -> Any:
        if isinstance(value, Mapping):
            return _slice(value, start, end, rows)
        whole = isinstance(value, Tensor | list | tuple) and len(value) == rows
        return value[start:end] if whole else value

    return {name: of(value) for name, value in batch.items()}


class Halving:
    """How many parts the batches of a stage are computed in, and the batches of the step that is being computed."""

    def __init__(self) -> None:
        self.parts = 1
        self.computed = 1
        """Parts of the batch that is being computed: fewer than `parts` where its rows do not make so many."""
        self.step: list[Mapping[str, Any]] = []

    def begin(self) -> None:
        """The next batch is the first of a step."""
        self.step = []

    def loss(
        self,
        batch: Mapping[str, Any],
        compute: Callable[[Batch], Tensor],
        clear: Callable[[], None],
        halved: Callable[[int], None],
    ) -> Tensor:
        """The loss () of a batch, whose gradients `compute` adds up part by part.

        `clear` takes all gradients away, and `halved(parts)` is told. Raises what `compute` raises once a part is one
        example.
        """
        self.step.append(batch)
        again = [batch]
        while True:
            try:
                return [self._computed(each, compute) for each in again][-1]
            except (RuntimeError, MemoryError) as error:
                if not isinstance(understood(error), OutOfMemory) or self.parts >= max(map(rows_of, self.step)):
                    raise
            self.parts *= 2
            clear()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            halved(self.parts)
            again = list(self.step)

    def _computed(self, batch: Mapping[str, Any], compute: Callable[[Batch], Tensor]) -> Tensor:
        parts = parts_of(batch, self.parts)
        self.computed = len(parts)
        return torch.stack([compute(part) for part in parts]).sum()
