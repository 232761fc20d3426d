"""Queries, keys and values by one product, and the attention between them, as one function of autograd.

A layer of an encoder makes queries, keys and values by three products of the same states, cuts each into heads, and
autograd does all of it backwards one by one. For short texts on a processor these calls, copies and sums are a part of
a step that can be felt. Here three matrices are joined where they are cast anyway, their product is cut into heads
once, and the gradients of the three come out of one product too. What is computed is what `trainers.training_attention`
computes, with the same bits of dropout; a gradient of the states is rounded once where three were and their sum.

It serves the self-attention of BERT and of the families of transformers whose code is BERT's, and Finery's own where
queries and keys are neither turned nor normalised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pipelines.models.read_queries import Attend, attending_to_itself, is_of_bert
from pipelines.trainers import dropout as few_bits
from pipelines.trainers import training_attention
from pipelines.trainers.dropout import KeptBits


class Heads(NamedTuple):
    """How a module attends."""

    number: int
    width: int
    scale: float
    """Products of queries and keys are multiplied by."""
    chance: float
    """That of a weight to be dropped while the module trains."""


@contextmanager
def joint_projections(model: nn.Module) -> Iterator[None]:
    """Inside the `with` block the self-attention of `model` is computed so wherever a call needs a gradient and takes
    the attention that is written for training."""
    served = [(module, heads) for module in model.modules() if (heads := _heads_of(module)) is not None]
    try:
        for module, heads in served:
            module.forward = attending_to_itself(module, _attend_of(module, heads))
        yield
    finally:
        for module, _ in served:
            module.__dict__.pop("forward", None)


# -- whom it serves ----------------------------------------------------------------------------------------------------


def _heads_of(module: nn.Module) -> Heads | None:
    """None for a module that is no such attention, or that somebody has changed."""
    from pipelines.architectures.attention import FineryAttention

    some: Any = module
    layers = [getattr(module, name, None) for name in PROJECTIONS]
    if "forward" in vars(module) or not all(map(_is_plain, layers)) or len(set(map(_form, layers))) != 1:
        return None
    if type(module) is FineryAttention:
        changed = some.query_norm is not None or some.scoring.kind in CHANGED_SCORES or some.num_key_value_groups != 1
        number = some.query.out_features // some.head_dim
        return None if changed else Heads(number, some.head_dim, some.scaling, some.attention_dropout)
    if is_of_bert(module):
        return Heads(some.num_attention_heads, some.attention_head_size, some.scaling, some.dropout.p)
    return None


PROJECTIONS = ("query", "key", "value")
CHANGED_SCORES = ("general", "cosine", "additive")
"""What a config calls scores that are no products of the projections alone."""


def _is_plain(layer: object) -> bool:
    weights = list(layer.parameters()) if type(layer) is nn.Linear else []
    kinds = {(type(each), each.device.type, each.dtype) for each in weights}
    return kinds == {(nn.Parameter, "cpu", torch.float32)}


def _form(layer: Any) -> tuple[torch.Size, bool]:
    return layer.weight.shape, layer.bias is None


# -- the calls ---------------------------------------------------------------------------------------------------------


def _attend_of(module: Any, heads: Heads) -> Attend:
    def attend(states: Tensor, mask: Tensor | None, rotation: Any, named: dict[str, Any]) -> Tensor | None:
        joined = None if rotation is not None else _joined(module, heads, states, mask, named)
        return joined if joined is None or is_of_bert(module) else module.output(joined)

    return attend


def _joined(module: Any, heads: Heads, states: Tensor, mask: Tensor | None, named: dict[str, Any]) -> Tensor | None:
    """What the states (batch, length, dim) attend to (batch, length, heads x width); None where that is another's."""
    layers = [getattr(module, name) for name in PROJECTIONS]
    if module.config._attn_implementation != training_attention.NAME or not torch.is_grad_enabled():
        return None
    if any(layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer) for layer in layers):
        return None
    if named.get("position_bias") is not None or (mask is not None and mask.requires_grad):
        return None
    mixed = torch.is_autocast_enabled("cpu")
    kind = torch.get_autocast_dtype("cpu") if mixed else torch.float32
    chance = heads.chance if module.training else 0.0
    masks = few_bits.open_stream() if chance else None
    drawn = not chance or (masks is not None and masks.serves(states, chance))
    if not drawn or states.device.type != "cpu" or (states.dtype is not kind and not mixed):
        return None
    with torch.autocast("cpu", enabled=False):
        mask = None if mask is None else training_attention.fitting(mask, kind)
        weights = (weight for layer in layers for weight in (layer.weight, layer.bias))
        joined: Tensor = _Joint.apply(states, mask, heads, chance, masks, kind, *weights)
    return joined


class _Joint(torch.autograd.Function):
    """States (batch, length, dim), and a weight (heads x width, dim) and a bias or None of queries, keys and values."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        mask: Tensor | None,
        heads: Heads,
        chance: float,
        masks: few_bits.MaskStream | None,
        kind: torch.dtype,
        *weights: Tensor | None,
    ) -> Tensor:
        batch, length, dim = states.shape
        number, width = heads.number, heads.width
        flat = states.to(kind).reshape(-1, dim)
        matrix = _one_below_another(weights[::2], kind)
        bias = None if weights[1] is None else _one_below_another(weights[1::2], kind)
        made = nn.functional.linear(flat, matrix, bias)
        by_head = made.view(batch, length, 3, number, width).permute(2, 0, 3, 1, 4).reshape(3, -1, length, width)
        attended, chances, kept = training_attention.attend(
            *by_head.unbind(0), number, mask, heads.scale, chance, masks
        )
        read = flat if any(ctx.needs_input_grad[FIRST::2]) else None
        ctx.save_for_backward(read, matrix, by_head, chances, *(() if kept is None else (kept.bits,)))
        ctx.heads, ctx.shape, ctx.dtype = heads, states.shape, states.dtype
        ctx.kept_scale = 1.0 if kept is None else kept.scale
        return attended.view(batch, number, length, width).transpose(1, 2).reshape(batch, length, -1)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        flat, matrix, by_head, chances, *bits = ctx.saved_tensors
        number, width, scale, _ = ctx.heads
        batch, length, _ = ctx.shape
        given = gradient.to(matrix.dtype).view(batch, length, number, width).transpose(1, 2).reshape(-1, length, width)
        found = torch.empty_like(by_head)
        kept = KeptBits(bits[0], ctx.kept_scale) if bits else None
        training_attention.attend_backward(given, *by_head.unbind(0), chances, scale, kept, found.unbind(0))
        of_made = found.view(3, batch, number, length, width).permute(1, 3, 0, 2, 4).reshape(batch * length, -1)
        needs = ctx.needs_input_grad
        of_states = (of_made @ matrix).view(ctx.shape).to(ctx.dtype) if needs[0] else None
        nothing = [None] * 3
        of_matrices = (of_made.T @ flat).float().chunk(3) if any(needs[FIRST::2]) else nothing
        of_biases = of_made.sum(0).float().chunk(3) if any(needs[FIRST + 1 :: 2]) else nothing
        pairs = (each for pair in zip(of_matrices, of_biases, strict=True) for each in pair)
        of_weights = (each if need else None for each, need in zip(pairs, needs[FIRST:], strict=True))
        return of_states, *[None] * (FIRST - 1), *of_weights


FIRST = 6
"""The place of the first weight among what `_Joint` is given."""


def _one_below_another(weights: Sequence[Tensor | None], kind: torch.dtype) -> Tensor:
    """Weights (rows, …) of one shape -> (3 x rows, …), in a type."""
    some = [weight for weight in weights if weight is not None]
    joined = some[0].new_empty(len(some) * len(some[0]), *some[0].shape[1:], dtype=kind)
    for part, weight in zip(joined.chunk(len(some)), some, strict=True):
        part.copy_(weight)
    return joined
