"""ALiBi: scores fall in proportion to distance, and nothing is added to the embeddings.

Press et al. 2022, "Train Short, Test Long", section 3, arxiv.org/abs/2108.12409.
"""

import math

import torch
from torch import Tensor


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
