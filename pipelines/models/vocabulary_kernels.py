"""What a softmax over a vocabulary needs on a GPU, as two Triton kernels: each reads a row of logits once.

torch takes a chunk of logits through a float32 copy, its log-softmax, the exponential of that and a copy back, each of
which crosses the GPU's memory. Here one kernel reads the logits and says of each row what losses are made of, another
puts the gradient in the place of the logits; both compute in float32 (Hsu et al. 2024, "Liger Kernel", section 3.2,
arxiv.org/abs/2410.10989; Milakov and Gimelshein 2018, "Online normalizer calculation for softmax",
arxiv.org/abs/1805.02867).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits of a row that are held together."""
WARPS = 8


class RowStatistics(NamedTuple):
    """What one pass over rows of logits x tells of each (rows,), float32."""

    normalizer: Tensor
    """log Σ exp x"""
    named: Tensor
    """x of the label"""
    largest: Tensor
    mean: Tensor
    expected: Tensor
    """Σ p x, so that the entropy is `normalizer - expected`."""


@triton.jit  # type: ignore[untyped-decorator]
def _describe(  # type: ignore[no-untyped-def]
    logits, labels, normalizer, named, largest, mean, expected, stride, words, scale, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    begin = logits + row * stride
    most = float("-inf")
    mass, weighted, total = 0.0, 0.0, 0.0
    whole = words // BLOCK * BLOCK
    for start in range(0, whole, BLOCK):  # without a mask, so that several logits are read at once
        x = tl.load(begin + start + tl.arange(0, BLOCK)).to(tl.float32) * scale
        higher = tl.maximum(most, tl.max(x, 0))
        likely = tl.exp(x - higher)
        earlier = tl.exp(most - higher)
        mass = mass * earlier + tl.sum(likely, 0)
        weighted = weighted * earlier + tl.sum(likely * x, 0)
        total += tl.sum(x, 0)
        most = higher
    if whole < words:
        at = whole + tl.arange(0, BLOCK)
        inside = at < words
        x = tl.load(begin + at, mask=inside, other=float("-inf")).to(tl.float32) * scale
        higher = tl.maximum(most, tl.max(x, 0))
        likely = tl.exp(x - higher)
        earlier = tl.exp(most - higher)
        mass = mass * earlier + tl.sum(likely, 0)
        weighted = weighted * earlier + tl.sum(tl.where(inside, likely * x, 0.0), 0)
        total += tl.sum(tl.where(inside, x, 0.0), 0)
        most = higher
    label = tl.load(labels + row)
    tl.store(normalizer + row, most + tl.log(mass))
    tl.store(named + row, tl.load(begin + label).to(tl.float32) * scale)
    tl.store(largest + row, most)
    tl.store(mean + row, total / words)
    tl.store(expected + row, weighted / mass)


@triton.jit  # type: ignore[untyped-decorator]
def _replace(  # type: ignore[no-untyped-def]
    logits, labels, normalizer, named, linear, entropic, constant, stride, words, scale, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    begin = logits + row * stride
    label = tl.load(labels + row)
    whole = tl.load(normalizer + row)
    a, b, c = tl.load(named + row), tl.load(linear + row), tl.load(entropic + row)
    full = words // BLOCK * BLOCK
    for start in range(0, full, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(begin + at).to(tl.float32) * scale - whole
        value = tl.exp(x) * (b + c * x) + constant + tl.where(at == label, a, 0.0)
        tl.store(begin + at, value.to(logits.dtype.element_ty))
    if full < words:
        at = full + tl.arange(0, BLOCK)
        inside = at < words
        x = tl.load(begin + at, mask=inside, other=0.0).to(tl.float32) * scale - whole
        value = tl.exp(x) * (b + c * x) + constant + tl.where(at == label, a, 0.0)
        tl.store(begin + at, value.to(logits.dtype.element_ty), mask=inside)


def describe(logits: Tensor, labels: Tensor, scale: float = 1.0) -> RowStatistics:
    """What each row of `logits` (rows, vocab) times `scale` comes to. labels (rows,)."""
    rows, words = logits.shape
    found = RowStatistics(*torch.empty(5, rows, dtype=torch.float32, device=logits.device))
    with torch.cuda.device(logits.device):
        _describe[(rows,)](
            logits, labels.contiguous(), *found, logits.stride(0), words, scale, BLOCK=BLOCK, num_warps=WARPS
        )
    return found


def replace(
    logits: Tensor,
    labels: Tensor,
    normalizer: Tensor,
    of_label: Tensor | float,
    linear: Tensor | float,
    entropic: Tensor | float,
    constant: float = 0.0,
    scale: float = 1.0,
) -> None:
    """Put `p (linear + entropic log p) + constant`, and at the label `of_label` more, in the place of the logits.

    logits (rows, vocab), the others (rows,), float32, or one number; p is the softmax of the logits times `scale`.
    """
    rows, words = logits.shape
    each = torch.empty(3, rows, dtype=torch.float32, device=logits.device)
    for own, given in zip(each, (of_label, linear, entropic), strict=True):
        own.copy_(given) if isinstance(given, Tensor) else own.fill_(given)
    with torch.cuda.device(logits.device):
        _replace[(rows,)](
            *(logits, labels.contiguous(), normalizer, *each, constant, logits.stride(0), words, scale),
            BLOCK=BLOCK,
            num_warps=WARPS,
        )


def run_on(device: torch.device) -> bool:
    """Whether the kernels can be built and run there; a machine may lack the C compiler that Triton asks for."""
    logits = torch.zeros(1, 2, device=device)
    try:
        found = describe(logits, torch.zeros(1, dtype=torch.long, device=device))
        replace(logits, torch.zeros(1, dtype=torch.long, device=device), found.normalizer, 0.0, 1.0, 0.0)
    except Exception:  # whatever Triton raises: torch's own operations compute the same
        return False
    return bool((logits - 0.5).abs().max() < 1e-6)
