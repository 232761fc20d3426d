"""The feed-forward network applied to each position alone. Vaswani et al. 2017, section 3.3."""

from torch import Tensor, nn
from transformers.activations import ACT2FN

from .configuration_finery import FineryConfig


class FineryFeedForward(nn.Module):
    """Widen, activate, narrow: (batch, query, dim) -> the same shape."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.output(self.activation(self.intermediate(hidden_states)))
