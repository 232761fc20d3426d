"""Batches that are computed in parts: what is too large for a processor, or for the memory.

The gradients of the parts add up to the same: the losses of a step are divided by the items of the whole step, so that
neither the effective batch nor the order of examples changes.

On a processor a batch of long texts is divided so that none of its tensors exceeds `core.costs.TENSOR_KEPT`. With
`per_device_train_batch_size: auto` one that does not fit is computed in two halves, in four quarters and so on. When
memory runs out, gradients may be half written; they are cleared, and the batches of the step so far are computed again.
What has been halved stays so, after a resume too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pipelines.core.errors import OutOfMemory, understood
from pipelines.core.interfaces import IGNORED
from pipelines.data.ragged import length_of_batch
from pipelines.models.predict import rows_at_once

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


BY_PLACE = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
"""What a batch says of each place of its texts."""

LENGTHS_APART = 32
"""Lengths of parts are multiples of this: with few sizes of tensors, memory that was freed fits the next part."""


def trimmed(part: Batch) -> Batch:
    """A part without the places behind its texts that are padding in all of them: others of its batch were longer.

    It ends with the first multiple of `LENGTHS_APART` tokens behind its longest text, or where its batch does. It is
    left whole where it holds more of each place than is known here, but for labels that ask nothing there.
    """
    mask = part.get("attention_mask")
    if not isinstance(mask, Tensor) or any(
        isinstance(each, Tensor) and each.ndim > mask.ndim for each in part.values()
    ):
        return part
    used = mask.reshape(-1, mask.shape[-1]).any(0).nonzero()
    longest = int(used[-1]) + 1 if len(used) else 1
    end = length_of_batch(longest, LENGTHS_APART, mask.shape[-1])
    along = {name: each for name, each in part.items() if isinstance(each, Tensor) and each.shape == mask.shape}
    if any(name not in BY_PLACE and (each[..., end:] != IGNORED).any() for name, each in along.items()):
        return part
    return part | {name: each[..., :end] for name, each in along.items()}


SEQUENCES = ("input_ids", "decoder_input_ids", "labels")
"""What a batch calls its tokens (examples, length) or (examples, choices, length)."""


def parts_by_size(model: nn.Module, mixed: bool) -> Callable[[Mapping[str, Any]], int]:
    """How many parts a batch of the model takes on a processor, `mixed` saying whether in 16 bits."""
    most = rows_at_once(model, mixed)

    def parts(batch: Mapping[str, Any]) -> int:
        found = [batch[name] for name in SEQUENCES if isinstance(batch.get(name), Tensor) and batch[name].ndim > 1]
        if most is None or not found:
            return 1
        rows = max(each.numel() // max(1, each.shape[-1]) for each in found)
        return -(-rows // most(max(each.shape[-1] for each in found)))

    return parts


class Halving:
    """How many parts the batches of a stage are computed in, and the batches of the step that is being computed.

    `by_size` says how many parts a batch takes however much memory there is; `recovers` whether more are tried when
    memory runs out.
    """

    def __init__(self, by_size: Callable[[Mapping[str, Any]], int] = lambda _: 1, recovers: bool = True) -> None:
        self.by_size = by_size
        self.recovers = recovers
        self.parts = 1
        self.computed = 1
        """Parts of the batch that is being computed: more than `parts` where its size asks for them, fewer where its
        rows do not make so many."""
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
                if not self.recovers or not isinstance(understood(error), OutOfMemory):
                    raise
                if (parts := max(self.parts, self.computed)) >= max(map(rows_of, self.step)):
                    raise
            self.parts = 2 * parts
            clear()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            halved(self.parts)
            again = list(self.step)

    def _computed(self, batch: Mapping[str, Any], compute: Callable[[Batch], Tensor]) -> Tensor:
        parts = parts_of(batch, max(self.parts, self.by_size(batch)))
        self.computed = len(parts)
        if len(parts) == 1:
            return compute(parts[0])
        return torch.stack([compute(trimmed(part)) for part in parts]).sum()
