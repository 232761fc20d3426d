"""The feed-forward network applied to each position alone. Vaswani et al. 2017, section 3.3.

Gated, the widened states are multiplied with act(gate(x)): Shazeer 2020, "GLU Variants Improve Transformer",
arxiv.org/abs/2002.05202, section 2.
"""

from torch import Tensor, nn
from transformers.activations import ACT2FN

from .configuration_finery import FineryConfig


def activation(config: FineryConfig) -> nn.Module:
    """The function named by `hidden_act`. `gelu_tanh` is GELU's original approximation with tanh."""
    return ACT2FN["gelu_pytorch_tanh" if config.hidden_act == "gelu_tanh" else config.hidden_act]


class FineryFeedForward(nn.Module):
    """Widen, activate, narrow: (batch, query, dim) -> the same shape."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        dim, wide = config.hidden_size, config.intermediate_size
        self.intermediate = nn.Linear(dim, wide, bias=config.mlp_bias)
        self.gate = nn.Linear(dim, wide, bias=config.mlp_bias) if config.is_gated_act else None
        self.activation = activation(config)
        self.dropout = nn.Dropout(config.activation_dropout_prob)
        self.output = nn.Linear(wide, dim, bias=config.mlp_bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        if self.gate is None:
            widened = self.activation(self.intermediate(hidden_states))
        else:
            widened = self.activation(self.gate(hidden_states)) * self.intermediate(hidden_states)
        return self.output(self.dropout(widened))
