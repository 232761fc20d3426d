"""Relative positions: a learned number for each bucket of distances is added to the scores.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", section 2.1,
arxiv.org/abs/1910.10683: near distances have a bucket each, farther ones share buckets that grow logarithmically, and
all layers of a stack share the table. The edges of the buckets are those of the authors' code (mesh_tensorflow,
transformer_layers.py, `_relative_position_bucket`), as in transformers' T5.
"""

import math

import torch
from torch import Tensor


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
