"""Gradient surgery: where two tasks pull in opposite directions, each gives up the part that harms the other.

PCGrad, Yu et al. 2020, "Gradient Surgery for Multi-Task Learning", arxiv.org/abs/2001.06782, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def project(gradients: Sequence[Tensor], seed: Sequence[int]) -> Tensor:
    """The sum of the tasks' gradients, each (weights,), after surgery.

    Each gradient is projected onto the normal plane of every other *original* gradient that it conflicts with, in an order
    drawn by `seed`: g_i <- g_i - (g_i . g_j) / |g_j|^2 g_j where g_i . g_j < 0.
    """
    generator = np.random.default_rng(list(seed))
    squares = [gradient.dot(gradient) for gradient in gradients]
    total = torch.zeros_like(gradients[0])
    for here, gradient in enumerate(gradients):
        changed = gradient.clone()
        for there in generator.permutation(len(gradients)).tolist():
            if there == here:
                continue
            along = changed.dot(gradients[there])
            if along < 0 and squares[there] > 0:
                changed -= along / squares[there] * gradients[there]
        total += changed
    return total


def cosines(gradients: Sequence[Tensor]) -> dict[tuple[int, int], float]:
    """The cosine between the gradients of each two tasks; 0 where one of them vanishes."""
    found = {}
    for here in range(len(gradients)):
        for there in range(here + 1, len(gradients)):
            scale = gradients[here].norm() * gradients[there].norm()
            found[here, there] = float(gradients[here].dot(gradients[there]) / scale) if scale > 0 else 0.0
    return found
