"""Position encodings: sinusoidal, rotary, ALiBi and relative.

- Sinusoidal: fixed waves, added to the embeddings (Vaswani et al. 2017, section 3.5, arxiv.org/abs/1706.03762).
- Rotary: queries and keys turn by an angle that grows with their place, so scores see only distances (Su et al. 2021,
  "RoFormer", section 3.2.2 for the angles and 3.4.2 for the computation, arxiv.org/abs/2104.09864). Neighbouring
  numbers form the pairs, as in the paper and in transformers' RoFormer (Llama pairs the two halves instead).
- ALiBi: scores fall in proportion to distance (Press et al. 2022, section 3, arxiv.org/abs/2108.12409).
- Relative: a learned number for each bucket of distances is added to the scores (Raffel et al. 2020, section 2.1,
  arxiv.org/abs/1910.10683). Near distances have a bucket each, farther ones share buckets that grow logarithmically,
  and all layers of a stack share the table. The edges of the buckets are those of the authors' code (mesh_tensorflow,
  transformer_layers.py, `_relative_position_bucket`), as in transformers' T5.
"""

import math

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of the angles by which pairs of numbers turn."""


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


def rotation_at(position_ids: Tensor, head_dim: int, theta: float) -> Rotation:
    """Cosine and sine of the angle position / theta^(2i / head_dim), by which pair i turns at each position.

    Computed at each pass, so there is no buffer that loading could leave empty or that a cast could round: bfloat16
    does not even tell position 256 from 257.

    Returns: two of (batch, 1, query, head_dim / 2), in float32.
    """
    pair = torch.arange(0, head_dim, 2, dtype=torch.float32, device=position_ids.device)  # (head_dim / 2,)
    angle = position_ids[..., None, :, None].float() * theta ** (-pair / head_dim)
    return angle.cos(), angle.sin()


def rotate(states: Tensor, rotation: Rotation) -> Tensor:
    """Each pair (a, b) of states (batch, heads, query, head_dim) becomes (a cos - b sin, a sin + b cos).

    Computed in float32 at least and rounded once, to the states' own type. As (a + bi)(cos + i sin) it reads and writes
    the states once; compilers and exporters, which join operations themselves, get it number by number.
    """
    cos, sin = rotation
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or states.device.type not in ("cpu", "cuda"):
        first, second = states[..., 0::2], states[..., 1::2]  # (batch, heads, query, head_dim / 2)
        turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    else:
        exact = states.to(torch.promote_types(states.dtype, cos.dtype))
        turned = torch.view_as_real(torch.view_as_complex(exact.unflatten(-1, (-1, 2))) * torch.complex(cos, sin))
    return turned.flatten(-2).to(states.dtype)


def alibi_slopes(num_heads: int) -> list[float]:
    """How fast each head's scores fall: 2^(-8/n), 2^(-16/n), …, 2^-8 for n heads, if n is a power of two.

    Otherwise those of the next smaller power of two, then every second one of the next larger, as in the authors' code
    (github.com/ofirpress/attention_with_linear_biases, get_slopes).
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    between = [2.0 ** (-4.0 * (head + 1) / power) for head in range(0, 2 * power, 2)]
    return slopes + between[: num_heads - power]


def alibi_bias(num_heads: int, distance: Tensor) -> Tensor:
    """What is added to each score: -slope · |distance|, in float32.

    `distance` (batch, query, key) is the key's position minus the query's. Where the future is hidden this is the
    paper's slope · (j - i); where it is not, both sides count alike.

    Returns: (batch, heads, query, key), never positive.
    """
    slopes = torch.tensor(alibi_slopes(num_heads), dtype=torch.float32, device=distance.device)
    return -slopes[:, None, None] * distance.abs()[:, None].float()


def relative_bucket(distance: Tensor, bidirectional: bool, num_buckets: int, max_distance: int) -> Tensor:
    """The bucket of each distance, the key's position minus the query's; same shape, whole numbers below `num_buckets`.

    Bidirectional: half of the buckets for keys at or before the query, half for those behind it. Otherwise all keys
    behind the query share bucket 0 with the query's own place.
    """
    if bidirectional:
        num_buckets //= 2
        offset = (distance > 0).long() * num_buckets
        distance = distance.abs()
    else:
        offset = 0
        distance = (-distance).clamp(min=0)
    near = num_buckets // 2  # distances below it have a bucket each
    ratio = torch.log(distance.clamp(min=1).float() / near) / math.log(max_distance / near)
    far = near + (ratio * (num_buckets - near)).long()
    return offset + torch.where(distance < near, distance, far.clamp(max=num_buckets - 1))
