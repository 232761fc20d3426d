"""Who sees whom: the masks and biases that a stack's self-attention adds to its scores.

Masks come from transformers' `masking_utils`, in the form that the kernel in use wants. A ready mask (batch, 1, query,
key) replaces padding and order; a window still applies to it. Biases of distance (ALiBi, relative positions) are added
to the mask once for all layers.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
)

from .configuration_finery import FineryConfig

BIASES = ("alibi", "relative")
"""Positions that are added to scores."""


def refuse_kernel(config: FineryConfig, implementation: str | None) -> None:
    """Raises ValueError if a kernel cannot compute the config's attention."""
    if implementation is None or config.usual("attention_pattern") == "linear":
        return
    if config.attention_scoring == "additive" and ("flash" in implementation or "flex" in implementation):
        raise ValueError(
            f"attention_scoring 'additive' is no product of queries and keys, which attn_implementation "
            f"'{implementation}' computes: use 'sdpa' or 'eager'"
        )
    if config.position in BIASES and "flash" in implementation:
        raise ValueError(
            f"position '{config.position}' adds a number to each score, for which attn_implementation "
            f"'{implementation}' has no place: use 'sdpa', 'eager' or 'flex_attention'"
        )


def padding_of(attention_mask: Tensor | Mapping[str, Any] | None) -> Tensor | None:
    """The mask as (batch, key) booleans, all that linear attention can respect."""
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 2:
        raise ValueError(
            "attention_pattern 'linear' sums all keys before it meets a query, so it takes an attention_mask of shape "
            "(batch, key) only: use another pattern for packed documents or static caches"
        )
    return attention_mask.bool()


def self_attention_mask(
    config: FineryConfig,
    states: Tensor,
    attention_mask: Tensor | Mapping[str, Any] | None,
    past: Cache | None,
    causal: bool,
    windowed: bool,
    position_ids: Tensor | None = None,
    prefix: Tensor | None = None,
    may_skip: bool = True,
) -> Any:
    """The mask of the layers that see a window, or of those that see all they may; None if nothing is hidden.

    states (batch, query, dim) are the stack's input. `position_ids` are those that the caller gave: where they start
    again, another document begins that sees nothing of the one before, if there is no attention_mask. `prefix` (batch,
    query) is 0 for tokens that see each other in both directions and -1 for others. Kernels that know about order by
    themselves get None if they `may_skip` a mask.
    """
    if isinstance(attention_mask, Mapping):  # made by `generate` for a static cache, by type of layer
        made = attention_mask.get("sliding_attention") if windowed else None
        if made is not None:
            return made
        attention_mask = attention_mask["full_attention"]
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:
        window = window_of(config, states, past, causal) if windowed else None
        return _ready(config, attention_mask.expand(len(states), -1, -1, -1), window, states.dtype)
    if prefix is not None and "flash" in config._attn_implementation:
        raise ValueError(
            "prefix_length needs a mask, which flash attention does not take: use attn_implementation 'sdpa'"
        )
    if not causal:
        create = create_bidirectional_sliding_window_mask if windowed else create_bidirectional_mask
        return create(config, states, attention_mask, past_key_values=past, allow_is_bidirectional_skip=may_skip)
    create = create_sliding_window_causal_mask if windowed else create_causal_mask
    return create(
        config,
        states,
        attention_mask,
        past,
        position_ids=None if position_ids is None or past is not None else places_in_documents(position_ids),
        block_sequence_ids=prefix,
        allow_is_causal_skip=may_skip,
    )


def _ready(config: FineryConfig, mask: Tensor, window: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A mask (batch, 1, query, key) of booleans or added numbers, within the window (1, query, key) if there is one."""
    if "flash" in config._attn_implementation:
        raise ValueError(
            "an attention_mask of shape (batch, 1, query, key) needs a kernel that takes masks, which flash attention "
            "does not: use attn_implementation 'sdpa', or position_ids that start again with each document"
        )
    lowest = hidden(dtype, mask.device)
    if window is not None:
        mask = mask[..., -window.shape[-1] :]
    if config._attn_implementation == "flex_attention":
        return _blocks(mask if mask.dtype == torch.bool else mask > lowest / 2, window)
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, lowest)
    if window is not None:
        mask = mask.masked_fill(~window[:, None], lowest)
    return mask.to(dtype).clamp(min=lowest)


def _blocks(seen: Tensor, window: Tensor | None) -> Any:
    """The form of flex attention: blocks of queries and keys that nobody looks across are left out altogether."""
    from torch.nn.attention.flex_attention import create_block_mask

    seen = seen if window is None else seen & window[:, None]
    batch, _, query, key = seen.shape
    return create_block_mask(lambda row, _, q, k: seen[row, 0, q, k], batch, None, query, key, device=seen.device)


def hidden(dtype: torch.dtype, device: torch.device) -> float:
    """What is added to a score to hide its key: the lowest number that autocast cannot turn into minus infinity.

    A row of minus infinities, as of a place of padding on the left, would come out of softmax as no numbers at all.
    """
    kind = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else dtype
    return max(torch.finfo(kind).min, torch.finfo(dtype).min)


def places_in_documents(position_ids: Tensor) -> Tensor:
    """0, 1, 2, … from each position that does not lie behind the one before it: (batch, query)."""
    place = torch.arange(position_ids.shape[-1], device=position_ids.device).expand_as(position_ids)
    starts = torch.zeros_like(place)
    starts[:, 1:] = torch.where(position_ids[:, 1:] <= position_ids[:, :-1], place[:, 1:], 0)
    return place - starts.cummax(dim=-1).values


def prefix_blocks(prefix_length: Tensor, attention_mask: Any, query: int) -> Tensor:
    """0 for the first `prefix_length` (batch,) tokens after padding on the left, -1 for others: (batch, query)."""
    place = torch.arange(query, device=prefix_length.device)[None]
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
        place = place - attention_mask.to(place.device).long().argmax(-1, keepdim=True)
    return torch.where((place >= 0) & (place < prefix_length[:, None]), 0, -1)


def distances(states: Tensor, past: Cache | None, layer_idx: int = 0, position_ids: Tensor | None = None) -> Tensor:
    """The key's place minus the query's, for all keys of a layer: (batch or 1, query, key).

    Places are `position_ids` if nothing is kept from before, for what is kept does not tell its own.
    """
    query = torch.arange(states.shape[1], device=states.device)
    if past is None:
        places = query[None] if position_ids is None else position_ids
        return places[:, None, :] - places[:, :, None]
    query = query + past.get_query_offset(layer_idx)
    keys, first = past.get_mask_sizes(states.shape[1], layer_idx)
    key = torch.arange(keys, device=states.device) + first
    return (key[None, :] - query[:, None])[None]


def window_of(config: FineryConfig, states: Tensor, past: Cache | None, causal: bool) -> Tensor:
    """Which keys lie within the window, order aside: (1, query, key) booleans."""
    away = distances(states, past, first_layer(config, windowed=True))
    return away > -config.sliding_window if causal else away.abs() <= config.sliding_window


def first_layer(config: FineryConfig, windowed: bool) -> int:
    """The first layer that sees a window, or that sees everything: a cache may keep less for the former."""
    layers = range(max(config.num_hidden_layers, config.usual("num_decoder_layers")))
    return next((index for index in layers if config.windowed(index) == windowed), 0)


def with_bias(mask: Any, bias: Tensor) -> Tensor:
    """Bias (batch or 1, heads, query, key) where the mask shows a key, and a very negative number where it does not."""
    if mask is None:
        return bias
    lowest = hidden(bias.dtype, bias.device)
    if mask.dtype == torch.bool:
        return torch.where(mask, bias, lowest)
    return (mask + bias).clamp(min=lowest)
