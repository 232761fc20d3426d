import math

import pytest
import torch
from torch import nn

from pipelines.architectures.layers import FineryFeedForward, activation


def test_it_widens_activates_and_narrows(tiny):
    feed_forward = FineryFeedForward(tiny(hidden_act="relu"))
    states = torch.randn(2, 3, 24)
    expected = feed_forward.output(feed_forward.intermediate(states).clamp(min=0))
    torch.testing.assert_close(feed_forward(states), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_a_gate_is_activated_and_multiplied_with_what_it_lets_through(tiny, bias):
    feed_forward = FineryFeedForward(tiny(hidden_act="silu", is_gated_act=True, mlp_bias=bias))
    states = torch.randn(2, 3, 24)
    gate = feed_forward.gate(states)
    expected = feed_forward.output(gate * gate.sigmoid() * feed_forward.intermediate(states))
    torch.testing.assert_close(feed_forward(states), expected)
    assert any("bias" in name for name, _ in feed_forward.named_parameters()) is bias


def test_gelu_tanh_is_the_original_formula(tiny):
    """Hendrycks and Gimpel 2016, section 2: 0.5x(1 + tanh[√(2/π)(x + 0.044715x³)])."""
    x = torch.linspace(-4, 4, 50, dtype=torch.float64)
    expected = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    torch.testing.assert_close(activation(tiny(hidden_act="gelu_tanh"))(x), expected)


def test_activation_dropout_falls_between_activation_and_output(tiny):
    feed_forward = FineryFeedForward(tiny(activation_dropout_prob=0.5)).train()
    feed_forward.output = nn.Identity()
    torch.manual_seed(0)
    dropped = feed_forward(torch.randn(50, 24)).eq(0).float().mean().item()
    assert dropped == pytest.approx(0.5, abs=0.05)
