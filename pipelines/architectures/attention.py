"""Multi-head attention of a sequence to itself.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2, arxiv.org/abs/1706.03762, with BERT's biases and its
dropout on the attention weights. The kernel (eager, sdpa, flex, flash) is transformers' choice through
`attn_implementation`; only the eager one, which can return the weights, is written here.
"""

from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_finery import FineryConfig
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

    query (batch, heads, query, head_dim); key and value (batch, heads, key, head_dim).
    Returns: (batch, query, heads, head_dim) and the weights (batch, heads, query, key).
    """
    scores = query @ key.transpose(-1, -2) * scaling  # (batch, heads, query, key)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.dropout(scores.softmax(dim=-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class FineryAttention(nn.Module):
    """(batch, query, dim) -> the same shape, and the weights if the kernel keeps them."""

    is_causal = False  # read by transformers' kernels, which otherwise hide later tokens when there is no mask

    def __init__(self, config: FineryConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_probs_dropout_prob
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        rotation: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """`past_key_values` hold keys and values to see besides the sequence's own, as prefix tuning supplies them.

        With rotary positions, `rotation` turns the sequence's queries and keys. Past keys are seen as they come: a
        cache holds them turned already, and a learned prefix has no place to be turned to.
        """
        batch_and_query = hidden_states.shape[:-1]
        by_head = (*batch_and_query, -1, self.head_dim)
        query = self.query(hidden_states).view(by_head).transpose(1, 2)  # (batch, heads, query, head_dim)
        key = self.key(hidden_states).view(by_head).transpose(1, 2)  # (batch, heads, key, head_dim)
        value = self.value(hidden_states).view(by_head).transpose(1, 2)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)  # the past ones come first

        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        attended, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.output(attended.reshape(*batch_and_query, -1)), weights
