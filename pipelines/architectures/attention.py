"""Multi-head attention of a sequence to itself or to another.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2, arxiv.org/abs/1706.03762, with BERT's biases and its
dropout on the attention weights. The kernel (eager, sdpa, flex, flash) is transformers' choice through
`attn_implementation`; only the eager one, which can return the weights, is written here.
"""

from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention_linear import linear_attention
from .attention_scoring import FineryScoring, additive_attention, scale_of
from .configuration_finery import FineryConfig
from .norms import norm
from .position_rotary import rotate


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
        rotation: tuple[Tensor, Tensor] | None = None,
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

    def _keys_and_values(self, states: Tensor, rotation: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
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
        kept = cache.cross_attention_cache.layers[self.layer_idx]
        return kept.keys, kept.values

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
        rotation: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
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
