"""Sinusoidal positions: fixed waves whose lengths grow geometrically from 2π to 10000·2π."""

import torch
from torch import Tensor


def sinusoidal_table(num_positions: int, dim: int) -> Tensor:
    """The encoding of each position, in float32.

    Vaswani et al. 2017, "Attention Is All You Need", section 3.5, arxiv.org/abs/1706.03762:
    PE(pos, 2i) = sin(pos / 10000^(2i/dim)) and PE(pos, 2i+1) = cos(pos / 10000^(2i/dim)).

    Returns: (position, dim), with sines in the even columns and cosines in the odd ones.
    """
    # In float64 first: at position 5,000 a float32 angle would already be off in the fourth digit.
    position = torch.arange(num_positions, dtype=torch.float64, device="cpu")
    frequency = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)  # (dim / 2,)
    angle = position[:, None] * frequency[None, :]  # (position, dim / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).to(torch.float32)
