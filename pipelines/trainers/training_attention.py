"""Softmax attention written for training on a processor: few passes over the scores, few of them kept.

Eager attention of transformers multiplies the scores by their scale, takes the softmax in float32, drops weights with a
mask of its own and rounds the rest for the product, each a pass that autograd keeps something of. Here queries bear the
scale and values what dropout scales up, the softmax is rounded as it is written, and of all pairs the chances and the
random bits alone are kept; what was dropped is computed again on the way back (as Dao et al. 2022, "FlashAttention",
section 3.1, do for all scores, arxiv.org/abs/2205.14135). For batches that are too small for the fused kernel, and for
dropout, which it has not: `models.attention_by_size` takes it where a model learns. It draws the bits that eager
attention would draw (`trainers.dropout`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipelines.trainers import dropout as few_bits
from pipelines.trainers.dropout import KeptBits

NAME = "finery_training"
"""What transformers' tables of attentions and of masks call it."""


def register() -> str:
    """Make the name known to transformers, which it returns; again without effect."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, training_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, eager_mask)
    return NAME


def training_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """dropout(softmax(q kᵀ · scaling + mask)) v, in the form that transformers' models call.

    query (batch, heads, length, head_dim); key (batch, key-value heads, keys, head_dim), value the same, of another
    width if need be; `attention_mask` (batch or 1, heads or 1, length, keys) is added.
    `position_bias`, as it, and a mask that learns are added as eager attention adds them, and all is kept then.
    Returns: (batch, length, heads, width of values), and no weights. Raises ValueError for what it does not know.
    """
    if odd := [name for name in ("softcap", "s_aux") if kwargs.get(name) is not None]:
        raise ValueError(f"{NAME} has no {odd[0]}, which {type(module).__name__} asks for: use eager attention")
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    chance = dropout if module.training else 0.0
    kind = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    with torch.autocast("cpu", enabled=False):
        mask = attention_mask
        if mask is not None and mask.dtype != kind:
            # The least float32 would be -inf in bfloat16, and a query that sees nothing, as padding may, would get NaN.
            mask = mask.to(kind).clamp_(min=torch.finfo(kind).min / 2)
        masks = few_bits.open_stream() if chance else None
        drawn = not chance or (masks is not None and masks.serves(query, chance))
        if drawn and position_bias is None and (mask is None or not mask.requires_grad):
            attended: Tensor = _Attention.apply(query, key, value, mask, scale, chance, masks, kind)
            return attended, None
        scores = (query.to(kind) * scale) @ key.to(kind).transpose(2, 3)
        for added in (position_bias, mask):
            scores = scores if added is None else scores + added.to(kind)
        weights = functional.dropout(scores.softmax(-1), chance, module.training)
        return (weights @ value.to(kind)).transpose(1, 2).contiguous(), None


class _Attention(torch.autograd.Function):
    """Queries, keys and values (batch, heads, length, width) of as many heads."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float,
        chance: float,
        masks: few_bits.MaskStream | None,
        kind: torch.dtype,
    ) -> Tensor:
        batch, heads, length = query.shape[:3]
        scores = query.new_empty(batch * heads, length, key.shape[2], dtype=kind)
        kept = None if masks is None else masks.kept(scores, chance)
        q, k = _laid_out(query, kind, scale), _laid_out(key, kind, 1.0)
        v = _laid_out(value, kind, 1.0 if kept is None else kept.scale)
        torch.bmm(q, k.transpose(1, 2), out=scores)
        if mask is not None:
            scores.view(batch, heads, length, -1).add_(mask)
        chances = softmax(scores)
        del scores
        attended = torch.bmm(chances if kept is None else kept.of(chances), v)
        ctx.save_for_backward(q, k, v, chances, *(() if kept is None else (kept.bits,)))
        ctx.kept_scale = 1.0 if kept is None else kept.scale  # type: ignore[attr-defined]
        ctx.scale, ctx.types = scale, (query.dtype, key.dtype, value.dtype)  # type: ignore[attr-defined]
        return attended.view(batch, heads, length, -1).transpose(1, 2).contiguous()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, chances, *bits = ctx.saved_tensors
        batch, _, heads, _ = gradient.shape
        kept = KeptBits(bits[0], ctx.kept_scale) if bits else None
        given = _laid_out(gradient.transpose(1, 2), chances.dtype, 1.0)
        of_value = torch.bmm((chances if kept is None else kept.of(chances)).transpose(1, 2), given)
        of_weights = torch.bmm(given, v.transpose(1, 2))
        if kept is not None:
            kept.of_(of_weights)
        of_scores = softmax_backward(of_weights, chances)
        del of_weights
        found = (
            torch.bmm(of_scores, k).mul_(ctx.scale),
            torch.bmm(of_scores.transpose(1, 2), q),
            of_value if kept is None else of_value.mul_(kept.scale),
        )
        shaped = (
            each.view(batch, heads, *each.shape[1:]).to(kind) for each, kind in zip(found, ctx.types, strict=True)
        )
        return *shaped, *[None] * 5


def _laid_out(states: Tensor, kind: torch.dtype, scale: float) -> Tensor:
    """`states` (batch, heads, length, head_dim) times `scale`, of one type and one after another: (batch x heads,
    length, head_dim)."""
    states = states.to(kind)
    if scale == 1.0:
        return states.reshape(-1, *states.shape[2:])
    scaled = torch.empty(states.shape, dtype=kind)
    return torch.mul(states, scale, out=scaled).view(-1, *states.shape[2:])


# -- the softmax -------------------------------------------------------------------------------------------------------
#
# torch 2.13 computes a softmax row by row in whole vectors, and what is left of a row number by number. A row shorter
# than a vector is all rest: 384 x 13 rows of 13 take 518 microseconds in bfloat16 and 793 in float32 on one thread of
# an AMD EPYC with AVX-512, where 384 x 16 rows of 16 take 84 in float32, and the passes below 157 and 155; their
# gradients take 325 and 302, and 66 and 47. In bfloat16 a vector is twice as long, and so are the rests
# (docs/decisions/0049-attention-by-size-on-a-processor.md).

VECTOR = {"AVX512": 16, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability(), 0)
"""Numbers in float32 that torch computes at once on this machine; 0 where nothing was measured."""
FEWEST = 4096
"""Scores, below which calls cost more than they save."""


def softmax(scores: Tensor) -> Tensor:
    """exp(scores) over its sum along the last dimension (…, keys), in the type of the scores."""
    kind, keys = scores.dtype, scores.shape[-1]
    if _is_known(scores) and keys < VECTOR:
        shifted = scores.float()
        powers = (shifted - shifted.amax(-1, keepdim=True)).exp_()
        return powers.div_(powers.sum(-1, keepdim=True)).to(kind)
    has_rest = keys < 8 * VECTOR and keys % (2 * VECTOR) >= VECTOR // 2
    if _is_known(scores) and kind is torch.bfloat16 and has_rest:
        return scores.float().softmax(-1).to(kind)
    return scores.softmax(-1)


def softmax_backward(gradient: Tensor, chances: Tensor) -> Tensor:
    """The gradient of the scores (…, keys), given that of their softmax, and the softmax, of one type."""
    kind, keys = chances.dtype, chances.shape[-1]
    if _is_known(chances) and keys < VECTOR:
        chances = chances.float()
        weighted = gradient.float() * chances
        return torch.addcmul(weighted, chances, weighted.sum(-1, keepdim=True), value=-1).to(kind)
    if _is_known(chances) and kind is torch.bfloat16 and keys < 2 * VECTOR:
        return torch._softmax_backward_data(gradient.float(), chances.float(), -1, torch.float32).to(kind)
    return torch._softmax_backward_data(gradient, chances, -1, kind)


def _is_known(values: Tensor) -> bool:
    """Whether values (…, keys) are of a kind, and so many, that torch's own way may be slower than others."""
    known = values.dtype in (torch.bfloat16, torch.float32) and values.device.type == "cpu"
    return known and values.numel() >= FEWEST
