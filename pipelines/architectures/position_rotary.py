"""Rotary positions: queries and keys turn by an angle that grows with their place, so scores see only distances.

Su et al. 2021, "RoFormer", arxiv.org/abs/2104.09864, section 3.2.2 (the angles) and section 3.4.2 (the computation).
Neighbouring numbers form the pairs, as in the paper and in transformers' RoFormer (Llama pairs the two halves instead).
"""

import torch
from torch import Tensor


def rotation_at(position_ids: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle position / theta^(2i / head_dim), by which pair i turns at each position.

    Computed at each pass, so there is no buffer that loading could leave empty or that a cast could round: bfloat16
    does not even tell position 256 from 257.

    Returns: two of (batch, 1, query, head_dim / 2), in float32.
    """
    pair = torch.arange(0, head_dim, 2, dtype=torch.float32, device=position_ids.device)  # (head_dim / 2,)
    angle = position_ids[..., None, :, None].float() * theta ** (-pair / head_dim)
    return angle.cos(), angle.sin()


def rotate(states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Each pair (a, b) of states (batch, heads, query, head_dim) becomes (a cos - b sin, a sin + b cos).

    Computed in float32 and rounded once, to the states' own type.
    """
    cos, sin = rotation
    first, second = states[..., 0::2], states[..., 1::2]  # (batch, heads, query, head_dim / 2)
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return turned.flatten(-2).to(states.dtype)
