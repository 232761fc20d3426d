"""Norms: each vector of numbers to mean 0 and variance 1, or to a mean square of 1.

Ba et al. 2016, "Layer Normalization", section 3, arxiv.org/abs/1607.06450. Zhang and Sennrich 2019, "Root Mean Square
Layer Normalization", section 4, arxiv.org/abs/1910.07467.
"""

from torch import nn

from .configuration_finery import FineryConfig


def norm(config: FineryConfig, size: int) -> nn.Module:
    """The config's norm over the last dimension, of `size` numbers, with a learned gain and, as configured, a bias."""
    if config.norm_type == "rms_norm":
        return nn.RMSNorm(size, eps=config.layer_norm_eps)
    return nn.LayerNorm(size, eps=config.layer_norm_eps, bias=config.norm_bias)
