"""How a query scores a key, beside the dot product.

Where a score is a dot product of something made of the query and something made of the key, only these are made here
and any attention kernel does the rest. Additive attention (Bahdanau et al. 2015, "Neural Machine Translation by
Jointly Learning to Align and Translate", appendix A.1.2, arxiv.org/abs/1409.0473) is none and computed here.
"""

import torch
from torch import Tensor, nn

from .configuration_finery import FineryConfig


def scale_of(config: FineryConfig) -> float:
    """What the kernel multiplies each dot product with: only `scaled_dot_product` has one."""
    return config.head_dim**-0.5 if config.attention_scoring == "scaled_dot_product" else 1.0


class FineryScoring(nn.Module):
    """Queries and keys (batch, heads, length, head_dim) as their kernel wants them, by `attention_scoring`.

    `general` has a bilinear form for each head, qᵀ W k (Luong et al. 2015, "Effective Approaches to Attention-based
    Neural Machine Translation", section 3.1, arxiv.org/abs/1508.04025). `cosine` has a temperature for each head, by
    which the cosine is multiplied (Henry et al. 2020, "Query-Key Normalization for Transformers", section 3,
    arxiv.org/abs/2010.04245). Both start from the spread of scaled dot products: W from the unit matrix / √head_dim, the
    temperature from √head_dim.
    """

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        heads, head_dim = config.num_attention_heads, config.head_dim
        self.kind = config.attention_scoring
        self.head_dim = head_dim
        if self.kind == "general":
            self.matrix = nn.Parameter(torch.empty(heads, head_dim, head_dim))
        elif self.kind == "additive":
            self.vector = nn.Parameter(torch.empty(heads, head_dim))
        elif self.kind == "cosine":
            self.temperature = nn.Parameter(torch.empty(heads))

    def of_query(self, query: Tensor) -> Tensor:
        if self.kind == "general":
            return query @ self.matrix.to(query.dtype)
        if self.kind == "cosine":
            return nn.functional.normalize(query, dim=-1) * self.temperature[:, None, None].to(query.dtype)
        return query

    def of_key(self, key: Tensor) -> Tensor:
        return nn.functional.normalize(key, dim=-1) if self.kind == "cosine" else key


def additive_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    vector: Tensor,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(vᵀ tanh(q + k) + mask) · values. The mask says by booleans or by added numbers which keys are seen.

    query (batch, heads, query, head_dim); key and value (batch, heads, key, head_dim); vector (heads, head_dim).
    Needs memory for batch · heads · query · key · head_dim numbers: no product of matrices gives these scores.
    Returns: (batch, query, heads, head_dim) and the weights (batch, heads, query, key).
    """
    mixed = torch.tanh(query[:, :, :, None] + key[:, :, None])  # (batch, heads, query, key, head_dim)
    scores = (mixed @ vector[:, None, :, None].to(mixed.dtype)).squeeze(-1)  # (batch, heads, query, key)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.dropout(scores.softmax(dim=-1), p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights
