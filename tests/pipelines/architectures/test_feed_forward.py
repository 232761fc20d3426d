import pytest
import torch
from torch import nn

from pipelines.architectures.feed_forward import FineryFeedForward


@pytest.mark.parametrize(("name", "activation"), [("gelu", nn.GELU()), ("relu", nn.ReLU()), ("silu", nn.SiLU())])
def test_it_widens_activates_and_narrows(tiny, name, activation):
    feed_forward = FineryFeedForward(tiny(hidden_act=name))
    expected = nn.Sequential(feed_forward.intermediate, activation, feed_forward.output)
    states = torch.randn(2, 5, 24)
    assert feed_forward.intermediate.out_features == 40
    torch.testing.assert_close(feed_forward(states), expected(states))
