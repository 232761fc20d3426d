"""Softmax attention written for training on a processor: few passes over the scores, few of them kept.

Eager attention of transformers multiplies the scores by their scale, takes the softmax in float32, drops weights with a
mask of its own and rounds the rest for the product, each a pass that autograd keeps something of. Here the products
themselves multiply by the scale and by what dropout scales up, the softmax is rounded as it is written, and of all
pairs the chances and the random bits alone are kept; what was dropped is computed again on the way back (as Dao et al.
2022, "FlashAttention", section 3.1, do for all scores, arxiv.org/abs/2205.14135). For batches that are too small for
the fused kernel, and for dropout, which it has not: `models.attention_by_size` takes it where a model learns. It draws
the bits that eager attention would draw (`trainers.dropout`).
"""

from __future__ import annotations

from collections.abc import Sequence
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
        mask = None if attention_mask is None else fitting(attention_mask, kind)
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


def fitting(mask: Tensor, kind: torch.dtype) -> Tensor:
    """What is added to scores, in their type."""
    if mask.dtype == kind:
        return mask
    # The least float32 would be -inf in bfloat16, and a query that sees nothing, as padding may, would get NaN.
    return mask.to(kind).clamp_(min=torch.finfo(kind).min / 2)


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
        q, k, v = (each.to(kind).reshape(-1, *each.shape[2:]) for each in (query, key, value))
        attended, chances, kept = attend(q, k, v, query.shape[1], mask, scale, chance, masks)
        ctx.save_for_backward(q, k, v, chances, *(() if kept is None else (kept.bits,)))
        ctx.scales = scale, 1.0 if kept is None else kept.scale  # type: ignore[attr-defined]
        ctx.types = query.dtype, key.dtype, value.dtype  # type: ignore[attr-defined]
        return attended.view(*query.shape[:3], -1).transpose(1, 2).contiguous()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, chances, *bits = ctx.saved_tensors
        batch, _, heads, _ = gradient.shape
        scale, kept_scale = ctx.scales
        given = gradient.transpose(1, 2).to(chances.dtype).reshape(len(q), q.shape[1], -1)
        found = [torch.empty_like(each) for each in (q, k, v)]
        attend_backward(given, q, k, v, chances, scale, KeptBits(bits[0], kept_scale) if bits else None, found)
        shaped = (
            each.view(batch, heads, *each.shape[1:]).to(kind) for each, kind in zip(found, ctx.types, strict=True)
        )
        return *shaped, *[None] * 5


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    mask: Tensor | None,
    scale: float,
    chance: float,
    masks: few_bits.MaskStream | None,
) -> tuple[Tensor, Tensor, KeptBits | None]:
    """q (batch x heads, length, width), k and v (batch x heads, keys, width) -> what is attended to (batch x heads,
    length, width), the softmax of all pairs and which of them are kept."""
    scores = q.new_empty(*q.shape[:2], k.shape[1])
    kept = None if masks is None else masks.kept(scores, chance)
    torch.baddbmm(scores, q, k.transpose(1, 2), beta=0, alpha=scale, out=scores)
    if mask is not None:
        scores.view(-1, heads, *scores.shape[1:]).add_(mask)
    chances = softmax(scores)
    del scores
    if kept is None:
        return torch.bmm(chances, v), chances, None
    attended = q.new_empty(*q.shape[:2], v.shape[2])
    torch.baddbmm(attended, kept.of(chances), v, beta=0, alpha=kept.scale, out=attended)
    return attended, chances, kept


def attend_backward(
    given: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chances: Tensor,
    scale: float,
    kept: KeptBits | None,
    found: Sequence[Tensor],
) -> None:
    """Write the gradients of q, k and v into `found`, `given` that of what was attended to (batch x heads, length,
    width)."""
    of_query, of_key, of_value = found
    kept_scale = 1.0 if kept is None else kept.scale
    weights = chances if kept is None else kept.of(chances)
    torch.baddbmm(of_value, weights.transpose(1, 2), given, beta=0, alpha=kept_scale, out=of_value)
    del weights
    of_weights = torch.empty_like(chances)
    torch.baddbmm(of_weights, given, v.transpose(1, 2), beta=0, alpha=kept_scale, out=of_weights)
    if kept is not None:
        kept.of_(of_weights)
    of_scores = softmax_backward(of_weights, chances)
    del of_weights
    torch.baddbmm(of_query, of_scores, k, beta=0, alpha=scale, out=of_query)
    torch.baddbmm(of_key, of_scores.transpose(1, 2), q, beta=0, alpha=scale, out=of_key)


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
