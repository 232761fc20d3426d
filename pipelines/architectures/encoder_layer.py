"""One layer of the encoder: attention and feed-forward network, each inside a residual connection.

Post-norm normalises the sum, LayerNorm(x + sublayer(x)) (Vaswani et al. 2017, section 3.1; BERT does the same).
Pre-norm normalises the input, x + sublayer(LayerNorm(x)), which trains without warm-up (Xiong et al. 2020, "On Layer
Normalization in the Transformer Architecture", table 1, arxiv.org/abs/2002.04745).
"""

from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import apply_chunking_to_forward

from .attention import FineryAttention
from .configuration_finery import FineryConfig
from .feed_forward import FineryFeedForward


class FineryEncoderLayer(GradientCheckpointingLayer):
    """(batch, query, dim) -> the same shape."""

    def __init__(self, config: FineryConfig, layer_idx: int) -> None:
        super().__init__()
        self.norm_first = config.norm_position == "pre"
        self.chunk_size = config.chunk_size_feed_forward
        self.attention = FineryAttention(config, layer_idx)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FineryFeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        if self.norm_first:
            hidden_states = hidden_states + self._attend(
                self.attention_norm(hidden_states), attention_mask, past_key_values, **kwargs
            )
            return hidden_states + self._transform(self.feed_forward_norm(hidden_states))
        hidden_states = self.attention_norm(
            hidden_states + self._attend(hidden_states, attention_mask, past_key_values, **kwargs)
        )
        return self.feed_forward_norm(hidden_states + self._transform(hidden_states))

    def _attend(
        self, hidden_states: Tensor, attention_mask: Tensor | None, past_key_values: Cache | None, **kwargs: Any
    ) -> Tensor:
        attended, _ = self.attention(hidden_states, attention_mask, past_key_values=past_key_values, **kwargs)
        return self.dropout(attended)

    def _transform(self, hidden_states: Tensor) -> Tensor:
        return self.dropout(apply_chunking_to_forward(self._transform_chunk, self.chunk_size, 1, hidden_states))

    def _transform_chunk(self, hidden_states: Tensor) -> Tensor:
        return self.feed_forward(hidden_states)
