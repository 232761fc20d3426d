"""Norms that hand out bfloat16 on a processor, in a model that computes under autocast.

States that begin in float32, as embeddings do, stay in it from norm to norm under autocast, so that every product
rounds them again, and sums with what products give are taken in two types. Here a LayerNorm takes its mean and variance
in float32 as before, of a sum that is rounded to bfloat16, and hands out bfloat16: sums behind post-norm layers are
bfloat16, those of pre-norm layers stay in float32 (docs/decisions/0051-asking-in-bfloat16.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from pipelines.core.launch import NATIVE_BF16, processor_flags
from pipelines.models.layer_compilation import is_compiled


@cache
def multiplies_bfloat16(proc: Path = Path("/proc")) -> bool:
    """Whether the processor does so itself."""
    return bool(processor_flags(proc) & NATIVE_BF16)


@contextmanager
def bfloat16_norms(model: nn.Module, learns: bool) -> Iterator[None]:
    """Inside the `with` block the model's norms hand out bfloat16 in each call under autocast to it on the CPU.

    Other calls go the plain way, with `learns` false also those that may need a gradient, and so do models that are
    compiled or lie elsewhere than on the CPU, and norms that somebody has changed.
    """
    changes = multiplies_bfloat16() and not any(is_compiled(each) for each in model.modules())
    norms = list(_plain(model)) if changes else []
    try:
        for norm in norms:
            norm.forward = _rounded(norm, learns)
        yield
    finally:
        for norm in norms:
            norm.__dict__.pop("forward", None)


def _plain(model: nn.Module) -> Iterator[nn.LayerNorm]:
    """Each one that nobody has changed."""
    for norm in model.modules():
        if type(norm) is not nn.LayerNorm or "forward" in norm.__dict__:
            continue
        if all(weight.device.type == "cpu" and weight.dtype is torch.float32 for weight in norm.parameters()):
            yield norm


def _rounded(norm: nn.LayerNorm, learns: bool) -> Callable[[Tensor], Tensor]:
    """(…, dim) -> the same shape in bfloat16."""
    plain: Callable[[Tensor], Tensor] = norm.forward

    def forward(given: Tensor) -> Tensor:
        rounds = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16
        if not rounds or given.device.type != "cpu" or (torch.is_grad_enabled() and not learns):
            return plain(given)
        shape = list(norm.normalized_shape)
        normal: Tensor = torch.native_layer_norm(given.to(torch.bfloat16), shape, norm.weight, norm.bias, norm.eps)[0]
        return normal

    return forward
