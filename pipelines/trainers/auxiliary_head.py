"""The output matrix of a language model, for a model that has another head."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional


class AuxiliaryHead(nn.Module):
    """Logits over the vocabulary, by the embeddings of the model it stands on, or by a matrix of its own."""

    def __init__(self, weight: Tensor | None, bias: Tensor | None, scale: float) -> None:
        super().__init__()
        self.weight = None if weight is None else nn.Parameter(weight.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.scale = scale

    @classmethod
    def of(cls, model: Any) -> AuxiliaryHead:
        """The head of a causal language model, without its matrix where that is the embeddings."""
        output, config = model.get_output_embeddings(), model.config
        tied = output.weight is model.get_input_embeddings().weight
        scale = config.hidden_size**-0.5 if getattr(config, "scale_logits", False) else 1.0
        return cls(None if tied else output.weight, output.bias, scale)

    def forward(self, hidden: Tensor, embeddings: Tensor) -> Tensor:
        """(tokens, dim) and (vocab, dim) to (tokens, vocab)."""
        return functional.linear(hidden * self.scale, embeddings if self.weight is None else self.weight, self.bias)
