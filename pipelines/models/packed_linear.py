"""Linear layers whose weights are laid out once, for asking a model on a processor.

oneDNN multiplies blocks. torch's linear layer hands it a matrix row by row, which it lays out anew at every call; a
model that is asked, and does not learn meanwhile, can have it laid out beforehand, as torch's inductor does in what it
compiles. In bfloat16 that is all; in float32 the products are oneDNN's in place of MKL's, which round differently. What
it saves was measured on AMD's cores (docs/results/speed.md), so float32 is left alone on others. Norms of a model that
is asked in bfloat16 hand it out (`models.bfloat16_norms`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from pipelines.core.launch import processor
from pipelines.models.bfloat16_norms import bfloat16_norms, multiplies_bfloat16
from pipelines.models.layer_compilation import is_compiled

LEAST = 1 << 14
"""Weights of a layer that is worth it: 128 x 128."""
MOST = 1 << 30
"""Bytes of all copies at most."""
FEWEST = {torch.float32: 4, torch.bfloat16: 1}
"""Rows, below which a call of oneDNN costs more than it saves."""
WORTH = 1024
"""Places of all texts together, below which laying the layers out costs more than it saves."""


@cache
def serves(dtype: torch.dtype, proc: Path = Path("/proc")) -> bool:
    """Whether layers are laid out for products in `dtype` on this machine."""
    if dtype not in FEWEST or not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype is torch.bfloat16:
        return multiplies_bfloat16(proc)
    return processor("vendor_id", proc) == "AuthenticAMD"


@contextmanager
def packed(model: nn.Module, places: int = WORTH) -> Iterator[None]:
    """Inside the `with` block the model's linear layers multiply by copies of their weights as they are now, and under
    autocast to bfloat16 its norms hand out bfloat16.

    `places` are the tokens of all texts that it will be asked about, where they are known: for few of them layers stay
    as they are. To be entered where the model computes: under the autocast, if any, that it is asked under. A call that
    needs a gradient, comes from another device or is made under another autocast goes the plain way, and so does a
    model that is compiled, lies elsewhere than on the CPU or is too large to be copied.
    """
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    lays_out, rounds = places >= WORTH, dtype is torch.bfloat16
    changes = (lays_out or rounds) and serves(dtype) and not any(is_compiled(each) for each in model.modules())
    layers = list(_layers(model)) if changes and lays_out else []
    if sum(weight.numel() for _, weight in layers) * dtype.itemsize > MOST:
        layers = []
    try:
        for layer, weight in layers:
            layer.forward = _forward(layer, weight, dtype)
        with bfloat16_norms(model, learns=False) if changes and rounds else nullcontext():
            yield
    finally:
        for layer, _ in layers:
            layer.__dict__.pop("forward", None)


def _layers(model: nn.Module) -> Iterator[tuple[nn.Module, Tensor]]:
    """(layer, its weight as (out, in)) of each one that nobody has changed."""
    from transformers.pytorch_utils import Conv1D

    for layer in model.modules():
        if type(layer) not in (nn.Linear, Conv1D) or "forward" in layer.__dict__:
            continue
        weight = layer.weight
        plain = type(weight) is nn.Parameter and weight.device.type == "cpu" and weight.dtype is torch.float32
        if plain and weight.numel() >= LEAST:
            yield layer, (weight.T if isinstance(layer, Conv1D) else weight).detach()


def _forward(layer: nn.Module, weight: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """(…, in) -> (…, out)."""
    plain: Callable[[Tensor], Tensor] = layer.forward
    multiply = torch.ops.mkldnn._linear_pointwise.default
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype).contiguous())
    bias = None if layer.bias is None else layer.bias.detach().to(dtype)
    least, mixed = FEWEST[dtype] * weight.shape[1], dtype is torch.bfloat16

    def forward(given: Tensor) -> Tensor:
        if given.numel() < least or given.device.type != "cpu" or torch.is_grad_enabled():
            return plain(given)
        if torch.is_autocast_enabled("cpu") != mixed or (given.dtype is not dtype and not mixed):
            return plain(given)
        product: Tensor = multiply(given.to(dtype), laid_out, bias, "none", [], "")
        return product

    return forward
