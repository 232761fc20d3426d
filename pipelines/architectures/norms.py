"""Norms: each vector of numbers to mean 0 and variance 1, or to a mean square of 1.

Ba et al. 2016, "Layer Normalization", section 3, arxiv.org/abs/1607.06450. Zhang and Sennrich 2019, "Root Mean Square
Layer Normalization", section 4, arxiv.org/abs/1910.07467.
"""

from torch import Tensor, nn

from .configuration_finery import FineryConfig


class FineryRMSNorm(nn.RMSNorm):
    """Divides by the root of the mean square, in float32 whatever comes in, and rounds once, to the input's own type."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        normed = nn.functional.rms_norm(hidden_states.float(), self.normalized_shape, self.weight.float(), self.eps)
        return normed.to(hidden_states.dtype)


def norm(config: FineryConfig, size: int) -> nn.Module:
    """The config's norm over the last dimension, of `size` numbers, with a learned gain and, as configured, a bias."""
    if config.norm_type == "rms_norm":
        return FineryRMSNorm(size, eps=config.layer_norm_eps)
    return nn.LayerNorm(size, eps=config.layer_norm_eps, bias=config.norm_bias)
