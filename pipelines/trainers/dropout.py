"""Dropout that costs a few random bits an element, for training on a CPU.

torch draws a float of 24 random bits for each element, one after the other, and keeps a mask of floats; in a small
model that is a tenth of a step. Here an element is kept or dropped by 15 bits of a generator that fills 64 at a time
(SFC64 of PractRand, pracrand.sourceforge.net), and a kept one is scaled by the reciprocal of the probability that these
bits give, so that the expectation is exact (Srivastava et al. 2014, "Dropout", section 10,
jmlr.org/papers/v15/srivastava14a.html). The bits of a batch are a function of (seed, step, batch of the step), taken in
the order in which the model asks for them: a resumed run draws those of the run that was not interrupted, and a batch
has the same ones whichever process it falls to.

On a GPU, where dropout is part of torch's kernels, and where activations are computed twice, torch's own numbers stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

RESOLUTION = 1 << 15
"""Probabilities are whole multiples of one over this."""
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers as wide as a number of so many bytes."""


class MaskStream:
    """The random bits of one batch at a time."""

    def __init__(self) -> None:
        self._generator: np.random.SFC64 | None = None

    @contextmanager
    def batch(self, *key: int) -> Iterator[None]:
        """Inside the `with` block `serves` holds, and the bits are those that belong to `key`, numbers from 0 on."""
        self._generator = np.random.SFC64(key)
        try:
            yield
        finally:
            self._generator = None

    def serves(self, values: Tensor, p: float) -> bool:
        """Whether a batch is open, and p, to the nearest 1 / RESOLUTION, leaves something to draw."""
        return self._generator is not None and values.device.type == "cpu" and 0 < round(p * RESOLUTION) < RESOLUTION

    def dropped(self, values: Tensor, p: float) -> Tensor:
        """`values` (…,) of which each is 0 with probability p, to the nearest 1 / RESOLUTION, and scaled up otherwise.

        To be called only where `serves` holds.
        """
        dropped: Tensor = _Masked.apply(values, self.kept(values, p))
        return dropped

    def kept(self, values: Tensor, p: float) -> KeptBits:
        """Which of `values` (…,) are kept where each is dropped with probability p, to the nearest 1 / RESOLUTION.

        To be called only where `serves` holds.
        """
        assert self._generator is not None
        share = round(p * RESOLUTION)
        words = self._generator.random_raw(-(-values.numel() // 4))
        bits = torch.from_numpy(words.view(np.int16))[: values.numel()].view(values.shape)
        # With the sign bit set they are uniform over -32768 … -1, and `share` of these no longer negative once `share`
        # is added; shifted, the sign is -1, which is all ones, for what is kept.
        bits = bits.bitwise_or_(-RESOLUTION).add_(share).bitwise_right_shift_(15)
        return KeptBits(bits, RESOLUTION / (RESOLUTION - share))


class KeptBits(NamedTuple):
    """What dropout leaves."""

    bits: Tensor
    """(…,) int16, all ones for what is kept, 0 for the rest."""
    scale: float
    """What is kept is multiplied by."""

    def of(self, values: Tensor) -> Tensor:
        """`values` (…,), 0 where they are dropped, not scaled."""
        words = _WORDS[values.element_size()]
        return torch.bitwise_and(values.view(words), self.bits.to(words)).view(values.dtype)

    def of_(self, values: Tensor) -> Tensor:
        """The same, in place."""
        words = _WORDS[values.element_size()]
        values.view(words).bitwise_and_(self.bits.to(words))
        return values


class _Masked(torch.autograd.Function):
    """What is kept of values (…,), scaled."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: Tensor, kept: KeptBits) -> Tensor:
        ctx.save_for_backward(kept.bits)
        ctx.scale = kept.scale  # type: ignore[attr-defined]
        return kept.of_(values * kept.scale)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return KeptBits(ctx.saved_tensors[0], ctx.scale).of_(gradient * ctx.scale), None


_open: list[MaskStream] = []


def open_stream() -> MaskStream | None:
    """That of the innermost `few_bits`."""
    return _open[-1] if _open else None


@contextmanager
def few_bits() -> Iterator[MaskStream]:
    """Inside the `with` block torch.nn.functional.dropout, which dropout modules and attention call, takes its masks
    from the stream wherever that serves."""
    masks, plain = MaskStream(), torch.nn.functional.dropout

    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if training and not inplace and masks.serves(input, p):
            return masks.dropped(input, p)
        return plain(input, p, training, inplace)

    torch.nn.functional.dropout = dropout
    _open.append(masks)
    try:
        yield masks
    finally:
        _open.remove(masks)
        torch.nn.functional.dropout = plain
