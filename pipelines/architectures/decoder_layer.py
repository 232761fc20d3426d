"""A layer of an encoder-decoder's decoder: between its two sublayers, attention to the encoder's output.

Vaswani et al. 2017, "Attention Is All You Need", section 3.1, arxiv.org/abs/1706.03762.
"""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from .attention import FineryAttention
from .configuration_finery import FineryConfig
from .layer import FineryLayer
from .norms import norm


class FineryDecoderLayer(FineryLayer):
    """(batch, query, dim) and the encoder's (batch, key, dim) -> the shape of the first."""

    def __init__(self, config: FineryConfig, layer_idx: int, causal: bool = True) -> None:
        super().__init__(config, layer_idx, causal)
        self.cross_attention = FineryAttention(config, layer_idx)
        self.cross_attention_norm = norm(config, config.hidden_size)
        if config.norm_position == "sandwich":
            self.cross_attention_output_norm = norm(config, config.hidden_size)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Without `encoder_hidden_states` the decoder stands alone and has nothing to attend to."""
        hidden_states = self._attend(hidden_states, attention_mask, past_key_values, **kwargs)
        if encoder_hidden_states is not None:
            hidden_states = self._attend_across(
                hidden_states, encoder_hidden_states, encoder_attention_mask, past_key_values
            )
        return self._transform(hidden_states)

    def _attend_across(
        self, hidden_states: Tensor, encoded: Tensor, encoder_attention_mask: Tensor | None, past: Cache | None
    ) -> Tensor:
        def attend(states: Tensor) -> Tensor:
            return self.cross_attention(states, encoder_attention_mask, key_value_states=encoded, past_key_values=past)[
                0
            ]

        return self._residual(hidden_states, attend, "cross_attention")
