"""Multi-head attention: which keys a query sees, how it scores them, and what it takes from them.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2, arxiv.org/abs/1706.03762, with BERT's biases and its
dropout on the attention weights. The kernel (eager, sdpa, flex, flash) is transformers' choice through
`attn_implementation`; only the eager one, which can return the weights, is written here.

Masks come from transformers' `masking_utils`, in the form that the kernel in use wants. A ready mask (batch, 1, query,
key) replaces padding and order; a window still applies to it. A kernel that is told where sequences begin
(`cu_seq_lens_q`) needs none. Biases of distance (ALiBi, relative positions) are added
to the mask once for all layers.

Where a score is a dot product of something made of the query and something made of the key, only these are made here
and any kernel does the rest. Additive attention (Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning
to Align and Translate", appendix A.1.2, arxiv.org/abs/1409.0473) is none and computed here.

Linear attention sums keys and values before any query, for its score is a product of features (Katharopoulos et al.
2020, "Transformers are RNNs", section 3, arxiv.org/abs/2006.16236): time and memory grow with the length, not with its
square. The causal form sums chunk by chunk: within a chunk the products are written out, and what came before it is one
matrix (Hua et al. 2022, "Transformer Quality in Linear Time", section 3.3, arxiv.org/abs/2202.10447).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    create_causal_mask,
    create_sliding_window_causal_mask,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_finery import FineryConfig
from .positions import Rotation, rotate

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Mask = Union[Tensor, "BlockMask", None]
"""What hides keys, in the form of the kernel in use; None where nothing is hidden, or the kernel does it."""


class FineryRMSNorm(nn.RMSNorm):
    """Divides by the root of the mean square, in float32 whatever comes in, and rounds once, to the input's own type.

    Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", section 4, arxiv.org/abs/1910.07467.
    """

    def forward(self, hidden_states: Tensor) -> Tensor:
        normed = nn.functional.rms_norm(hidden_states.float(), self.normalized_shape, self.weight.float(), self.eps)
        return normed.to(hidden_states.dtype)


def norm(config: FineryConfig, size: int) -> nn.Module:
    """The config's norm over the last dimension, of `size` numbers, with a learned gain and, as configured, a bias.

    LayerNorm is that of Ba et al. 2016, section 3, arxiv.org/abs/1607.06450.
    """
    if config.norm_type == "rms_norm":
        return FineryRMSNorm(size, eps=config.layer_norm_eps)
    return nn.LayerNorm(size, eps=config.layer_norm_eps, bias=config.norm_bias)


BIASES = ("alibi", "relative")
"""Positions that are added to scores."""


def by_sequences(implementation: str | None) -> bool:
    """Whether a kernel is told where sequences begin, and has no place for numbers that are added to scores."""
    return implementation is not None and ("flash" in implementation or "varlen" in implementation)


def refuse_kernel(config: FineryConfig, implementation: str | None) -> None:
    """Raises ValueError if a kernel cannot compute the config's attention."""
    if implementation is None or config.usual("attention_pattern") == "linear":
        return
    if config.attention_scoring == "additive" and (by_sequences(implementation) or "flex" in implementation):
        raise ValueError(
            f"attention_scoring 'additive' is no product of queries and keys, which attn_implementation "
            f"'{implementation}' computes: use 'sdpa' or 'eager'"
        )
    if config.position in BIASES and by_sequences(implementation):
        raise ValueError(
            f"position '{config.position}' adds a number to each score, for which attn_implementation "
            f"'{implementation}' has no place: use 'sdpa', 'eager' or 'flex_attention'"
        )


def hides_nothing(attention_mask: Tensor | Mapping[str, Tensor] | None) -> bool:
    """Whether there is no mask, or the single True (1, 1, 1, 1) that stands for none."""
    return attention_mask is None or (isinstance(attention_mask, Tensor) and attention_mask.shape == (1, 1, 1, 1))


def padding_of(attention_mask: Tensor | Mapping[str, Tensor] | None) -> Tensor | None:
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
    attention_mask: Tensor | Mapping[str, Tensor] | None,
    past: Cache | None,
    causal: bool,
    windowed: bool,
    position_ids: Tensor | None = None,
    prefix: Tensor | None = None,
    may_skip: bool = True,
) -> Mask:
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


def _ready(config: FineryConfig, mask: Tensor, window: Tensor | None, dtype: torch.dtype) -> Mask:
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
        seen = mask if mask.dtype == torch.bool else mask > max(lowest, torch.finfo(mask.dtype).min) / 2
        return _blocks(seen, window)
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, lowest)
    mask = mask.to(dtype)
    if window is not None:
        mask = mask.masked_fill(~window[:, None], lowest)
    return mask.clamp(min=lowest)


def _blocks(seen: Tensor, window: Tensor | None) -> "BlockMask":
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


def prefix_blocks(prefix_length: Tensor, attention_mask: Tensor | Mapping[str, Tensor] | None, query: int) -> Tensor:
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


def with_bias(mask: Tensor | None, bias: Tensor) -> Tensor:
    """Bias (batch or 1, heads, query, key) where the mask shows a key, and a very negative number where it does not."""
    if mask is None:
        return bias
    lowest = hidden(bias.dtype, bias.device)
    if mask.dtype == torch.bool:
        return torch.where(mask, bias, lowest)
    return (mask + bias).clamp(min=lowest)


def scale_of(config: FineryConfig) -> float:
    """What the kernel multiplies each dot product with: only `scaled_dot_product` has one."""
    return config.head_dim**-0.5 if config.attention_scoring == "scaled_dot_product" else 1.0


class FineryScoring(nn.Module):
    """Queries and keys (batch, heads, length, head_dim) as their kernel wants them, by `attention_scoring`.

    `general` has a bilinear form for each head, qᵀ W k (Luong et al. 2015, "Effective Approaches to Attention-based
    Neural Machine Translation", section 3.1, arxiv.org/abs/1508.04025). `cosine` has a temperature for each head, by
    which the cosine is multiplied (Henry et al. 2020, "Query-Key Normalization for Transformers", section 3,
    arxiv.org/abs/2010.04245). Both start from the spread of scaled dot products: W from the unit matrix / √head_dim,
    the temperature from √head_dim.
    """

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        heads, head_dim = config.num_attention_heads, config.head_dim
        self.kind = config.attention_scoring
        self.head_dim = head_dim
        if self.kind == "general":
            self.matrix = nn.Parameter(torch.empty(heads, head_dim, head_dim))
        elif self.kind == "additive":
            self.vector = nn.Parameter(torch.empty(heads, head_dim))
        elif self.kind == "cosine":
            self.temperature = nn.Parameter(torch.empty(heads))

    def of_query(self, query: Tensor) -> Tensor:
        if self.kind == "general":
            return query @ self.matrix.to(query.dtype)
        if self.kind == "cosine":
            return nn.functional.normalize(query, dim=-1) * self.temperature[:, None, None].to(query.dtype)
        return query

    def of_key(self, key: Tensor) -> Tensor:
        return nn.functional.normalize(key, dim=-1) if self.kind == "cosine" else key


def additive_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    vector: Tensor,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(vᵀ tanh(q + k) + mask) · values. The mask says by booleans or by added numbers which keys are seen.

    query (batch, heads, query, head_dim); key and value (batch, heads, key, head_dim); vector (heads, head_dim).
    Needs memory for batch · heads · query · key · head_dim numbers: no product of matrices gives these scores.
    Returns: (batch, query, heads, head_dim) and the weights (batch, heads, query, key).
    """
    mixed = torch.tanh(query[:, :, :, None] + key[:, :, None])  # (batch, heads, query, key, head_dim)
    scores = (mixed @ vector[:, None, :, None].to(mixed.dtype)).squeeze(-1)  # (batch, heads, query, key)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.dropout(scores.softmax(dim=-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


CHUNK = 64
"""Positions whose products are written out together. The result does not depend on it."""


def features(states: Tensor) -> Tensor:
    """elu(x) + 1, never negative, in float32. Equation 7."""
    return nn.functional.elu(states.float()) + 1


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor | None = None,
    causal: bool = False,
    query_rotation: Rotation | None = None,
    key_rotation: Rotation | None = None,
) -> Tensor:
    """Σ φ(q)·φ(k) v / Σ φ(q)·φ(k), over all keys or, if causal, over those up to the query's own place.

    query (batch, heads, query, head_dim); key and value (batch, heads, key, head_dim). The queries are the last of the
    keys' places. `seen` (batch, key) is True where a key is no padding. Rotations turn the features, in the numerator
    only, or a sum of weights could be zero (Su et al. 2021, "RoFormer", section 3.3, equation 19).

    Returns: (batch, heads, query, head_dim), in the values' type.
    """
    query_features, key_features, values = features(query), features(key), value.float()
    if seen is not None:
        key_features = key_features * seen[:, None, :, None]
    turned_query, turned_key = query_features, key_features
    if query_rotation is not None and key_rotation is not None:
        turned_query, turned_key = rotate(query_features, query_rotation), rotate(key_features, key_rotation)
    if causal and query.shape[-2] > 1:
        total = causal_products(turned_query, turned_key, values)
        weight = (query_features * key_features.cumsum(-2)[..., -query.shape[-2] :, :]).sum(-1, keepdim=True)
    else:  # one query, the newest, sees every key too
        total = turned_query @ (turned_key.transpose(-1, -2) @ values)
        weight = query_features @ key_features.sum(-2)[..., None]
    return (total / weight.masked_fill(weight == 0, 1.0)).to(value.dtype)  # 0 where only padding is seen


def causal_products(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Σ_{j ≤ i} (q_i · k_j) v_j for each query i; shapes as above, the queries being the last of the keys' places."""
    batch, heads, length, _ = key.shape
    query_length = query.shape[-2]
    after = -length % CHUNK
    query = nn.functional.pad(query, (0, 0, length - query_length, after))
    chunks = (batch, heads, (length + after) // CHUNK, CHUNK)
    query = query.reshape(*chunks, -1)  # (batch, heads, chunk, place, head_dim)
    key = nn.functional.pad(key, (0, 0, 0, after)).reshape(*chunks, -1)
    value = nn.functional.pad(value, (0, 0, 0, after)).reshape(*chunks, -1)
    within = (query @ key.transpose(-1, -2)).tril() @ value
    sums = key.transpose(-1, -2) @ value  # (batch, heads, chunk, head_dim, head_dim)
    before = sums.cumsum(2) - sums
    total = (within + query @ before).reshape(batch, heads, length + after, -1)
    return total[:, :, length - query_length : length]


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ / √head_dim + mask) v, spelled out. The mask holds 0 for a seen key and a very negative number else.

    query (batch, heads, query, head_dim); key and value (batch, key-value heads, key, head_dim).
    Returns: (batch, query, heads, head_dim) and the weights (batch, heads, query, key).
    """
    key, value = for_each_query_head(key, query), for_each_query_head(value, query)
    scores = query @ key.transpose(-1, -2) * scaling  # (batch, heads, query, key)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.dropout(scores.softmax(dim=-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def for_each_query_head(states: Tensor, query: Tensor) -> Tensor:
    """Keys or values (batch, key-value heads, key, head_dim) repeated for the query heads that share them."""
    shared_by = query.shape[1] // states.shape[1]
    return states if shared_by == 1 else states.repeat_interleave(shared_by, dim=1)


class FineryAttention(nn.Module):
    """(batch, query, dim) -> the same shape, and the weights if the kernel keeps them."""

    is_causal = False  # read by transformers' kernels, which otherwise hide later tokens when there is no mask

    def __init__(self, config: FineryConfig, layer_idx: int, causal: bool = False, window: int | None = None) -> None:
        """`window` is how many tokens, its own among them, a token sees on a side, for kernels without a mask."""
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = causal
        self.window = window
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = scale_of(config)
        self.attention_dropout = config.attention_probs_dropout_prob
        dim, bias = config.hidden_size, config.attention_bias
        wide, shared = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.query = nn.Linear(dim, wide, bias=bias)
        self.key = nn.Linear(dim, shared, bias=bias)
        self.value = nn.Linear(dim, shared, bias=bias)
        self.output = nn.Linear(wide, dim, bias=bias)
        self.query_norm = norm(config, self.head_dim) if config.qk_norm else None
        self.key_norm = norm(config, self.head_dim) if config.qk_norm else None
        self.scoring = FineryScoring(config)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        past_key_values: Cache | None = None,
        rotation: Rotation | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """`key_value_states` (batch, key, dim) is what the sequence attends to, if not to itself.

        `past_key_values` hold keys and values to see besides the sequence's own, as a cache or prefix tuning supplies
        them. With rotary positions, `rotation` turns the sequence's queries and keys. Past keys are seen as they come:
        a cache holds them turned already, and a learned prefix has no place to be turned to.
        """
        query = self._by_head(self.query, hidden_states)
        if self.query_norm is not None:
            query = self.query_norm(query)
        query = self.scoring.of_query(query)
        if rotation is not None:
            query = rotate(query, rotation)
        if key_value_states is None:
            key, value = self._keys_and_values(hidden_states, rotation)
            if isinstance(past_key_values, EncoderDecoderCache):
                past_key_values = past_key_values.self_attention_cache
            if past_key_values is not None:
                key, value = past_key_values.update(key, value, self.layer_idx)  # the past ones come first
        else:
            key, value = self._keys_and_values_of(key_value_states, past_key_values)
        attended, weights = self._attend(query, key, value, attention_mask, **kwargs)
        return self.output(attended.flatten(-2)), weights

    def _by_head(self, projection: nn.Module, states: Tensor) -> Tensor:
        """(batch, length, dim) -> (batch, heads, length, head_dim)."""
        return projection(states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _keys_and_values(self, states: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        key, value = self._by_head(self.key, states), self._by_head(self.value, states)
        if self.key_norm is not None:
            key = self.key_norm(key)
        key = self.scoring.of_key(key)
        return key if rotation is None else rotate(key, rotation), value

    def _keys_and_values_of(self, states: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of another sequence, computed once if there is a cache to keep them."""
        if not isinstance(cache, EncoderDecoderCache):
            return self._keys_and_values(states, None)
        if not cache.is_updated.get(self.layer_idx):
            cache.cross_attention_cache.update(*self._keys_and_values(states, None), self.layer_idx)
            cache.is_updated[self.layer_idx] = True
        layer = cache.cross_attention_cache.layers[self.layer_idx]
        return layer.keys, layer.values

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """(batch, query, heads, head_dim), and the weights (batch, heads, query, key) if the kernel keeps them."""
        dropout = self.attention_dropout if self.training else 0.0
        if self.scoring.kind == "additive":
            key, value = for_each_query_head(key, query), for_each_query_head(value, query)
            return additive_attention(self, query, key, value, attention_mask, self.scoring.vector, dropout)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        return attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=self.scaling,
            sliding_window=self.window,
            **kwargs,
        )


class FineryLinearAttention(FineryAttention):
    """The same projections, but features whose products are summed: time grows with the length, not its square.

    There are no weights to return or to drop out. The mask (batch, key) says which keys are no padding. A cache holds
    keys before they are turned, so `rotation` is that of the queries and that of all keys.
    """

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        past_key_values: Cache | None = None,
        rotation: tuple[Rotation, Rotation] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        query = self._by_head(self.query, hidden_states)
        if self.query_norm is not None:
            query = self.query_norm(query)
        key, value = self._keys_and_values(hidden_states, None)
        if isinstance(past_key_values, EncoderDecoderCache):
            past_key_values = past_key_values.self_attention_cache
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        key, value = for_each_query_head(key, query), for_each_query_head(value, query)
        attended = linear_attention(query, key, value, attention_mask, self.is_causal, *(rotation or ()))
        return self.output(attended.transpose(1, 2).flatten(-2)), None
