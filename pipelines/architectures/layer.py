"""One layer: attention and feed-forward network, each inside a residual connection.

Post-norm normalises the sum, norm(x + sublayer(x)) (Vaswani et al. 2017, section 3.1; BERT does the same). Pre-norm
normalises the input, x + sublayer(norm(x)), which trains without warm-up (Xiong et al. 2020, "On Layer Normalization in
the Transformer Architecture", table 1, arxiv.org/abs/2002.04745). Sandwich normalises input and output,
x + norm(sublayer(norm(x))) (Ding et al. 2021, "CogView", section 2.4, arxiv.org/abs/2105.13290).
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import apply_chunking_to_forward

from .attention import FineryAttention, FineryLinearAttention
from .configuration_finery import FineryConfig
from .feed_forward import FineryFeedForward
from .norms import norm


class FineryLayer(GradientCheckpointingLayer):
    """(batch, query, dim) -> the same shape."""

    def __init__(self, config: FineryConfig, layer_idx: int, causal: bool = False) -> None:
        super().__init__()
        self.norm_position = config.norm_position
        self.chunk_size = config.chunk_size_feed_forward
        self.attention = self_attention(config, layer_idx, causal)
        self.attention_norm = norm(config, config.hidden_size)
        self.feed_forward = FineryFeedForward(config)
        self.feed_forward_norm = norm(config, config.hidden_size)
        if config.norm_position == "sandwich":
            self.attention_output_norm = norm(config, config.hidden_size)
            self.feed_forward_output_norm = norm(config, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """What carries a gradient comes first: reentrant checkpointing only follows positional arguments."""
        hidden_states = self._attend(hidden_states, attention_mask, past_key_values, **kwargs)
        return self._transform(hidden_states)

    def _attend(
        self, hidden_states: Tensor, attention_mask: Tensor | None, past_key_values: Cache | None, **kwargs: Any
    ) -> Tensor:
        def attend(states: Tensor) -> Tensor:
            return self.attention(states, attention_mask, past_key_values=past_key_values, **kwargs)[0]

        return self._residual(hidden_states, attend, "attention")

    def _transform(self, hidden_states: Tensor) -> Tensor:
        def transform(states: Tensor) -> Tensor:
            return apply_chunking_to_forward(self._transform_chunk, self.chunk_size, 1, states)

        return self._residual(hidden_states, transform, "feed_forward")

    def _transform_chunk(self, hidden_states: Tensor) -> Tensor:
        return self.feed_forward(hidden_states)

    def _residual(self, hidden_states: Tensor, sublayer: Callable[[Tensor], Tensor], name: str) -> Tensor:
        """The sublayer with its norms and dropout, added to its input."""
        normalise = getattr(self, f"{name}_norm")
        if self.norm_position == "post":
            return normalise(hidden_states + self.dropout(sublayer(hidden_states)))
        changed = sublayer(normalise(hidden_states))
        if self.norm_position == "sandwich":
            changed = getattr(self, f"{name}_output_norm")(changed)
        return hidden_states + self.dropout(changed)


def self_attention(config: FineryConfig, layer_idx: int, causal: bool) -> FineryAttention:
    """The attention that the config's pattern asks for in a layer."""
    if config.usual("attention_pattern") == "linear":
        return FineryLinearAttention(config, layer_idx, causal)
    window = None
    if config.windowed(layer_idx):  # in kernels a window counts the token itself
        window = config.sliding_window if causal else config.sliding_window + 1
    return FineryAttention(config, layer_idx, causal, window)
