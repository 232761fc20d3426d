"""Linear attention: the score is a product of features, so keys and values are summed before any query.

Katharopoulos et al. 2020, "Transformers are RNNs", section 3, arxiv.org/abs/2006.16236. Time and memory grow with the
length, not with its square. The causal form sums chunk by chunk: within a chunk the products are written out, and
what came before it is one matrix (Hua et al. 2022, "Transformer Quality in Linear Time", section 3.3,
arxiv.org/abs/2202.10447).
"""

from torch import Tensor, nn

from .position_rotary import rotate

CHUNK = 64
"""Positions whose products are written out together. The result does not depend on it."""


def features(states: Tensor) -> Tensor:
    """elu(x) + 1, never negative, in float32. Equation 7."""
    return nn.functional.elu(states.float()) + 1


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor | None = None,
    causal: bool = False,
    query_rotation: tuple[Tensor, Tensor] | None = None,
    key_rotation: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Σ φ(q)·φ(k) v / Σ φ(q)·φ(k), over all keys or, if causal, over those up to the query's own place.

    query (batch, heads, query, head_dim); key and value (batch, heads, key, head_dim). The queries are the last of the
    keys' places. `seen` (batch, key) is True where a key is no padding. Rotations turn the features, in the numerator
    only, or a sum of weights could be zero (Su et al. 2021, "RoFormer", section 3.3, equation 19).

    Returns: (batch, heads, query, head_dim), in the values' type.
    """
    query_features, key_features, values = features(query), features(key), value.float()
    if seen is not None:
        key_features = key_features * seen[:, None, :, None]
    turned_query, turned_key = query_features, key_features
    if query_rotation is not None and key_rotation is not None:
        turned_query, turned_key = rotate(query_features, query_rotation), rotate(key_features, key_rotation)
    if causal and query.shape[-2] > 1:
        total = causal_products(turned_query, turned_key, values)
        weight = (query_features * key_features.cumsum(-2)[..., -query.shape[-2] :, :]).sum(-1, keepdim=True)
    else:  # one query, the newest, sees every key too
        total = turned_query @ (turned_key.transpose(-1, -2) @ values)
        weight = query_features @ key_features.sum(-2)[..., None]
    return (total / weight.masked_fill(weight == 0, 1.0)).to(value.dtype)  # 0 where only padding is seen


def causal_products(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Σ_{j ≤ i} (q_i · k_j) v_j for each query i; shapes as above, the queries being the last of the keys' places."""
    batch, heads, length, _ = key.shape
    asked = query.shape[-2]
    after = -length % CHUNK
    query = nn.functional.pad(query, (0, 0, length - asked, after))
    chunks = (batch, heads, (length + after) // CHUNK, CHUNK)
    query = query.reshape(*chunks, -1)  # (batch, heads, chunk, place, head_dim)
    key = nn.functional.pad(key, (0, 0, 0, after)).reshape(*chunks, -1)
    value = nn.functional.pad(value, (0, 0, 0, after)).reshape(*chunks, -1)
    within = (query @ key.transpose(-1, -2)).tril() @ value
    sums = key.transpose(-1, -2) @ value  # (batch, heads, chunk, head_dim, head_dim)
    before = sums.cumsum(2) - sums
    total = (within + query @ before).reshape(batch, heads, length + after, -1)
    return total[:, :, length - asked : length]
