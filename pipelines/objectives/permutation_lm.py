"""Permutation language modelling: name tokens in a random order, each from those before it in that order.

Yang et al. 2019, "XLNet", sections 2.2 and 2.3, arxiv.org/abs/1906.08237. Two streams: the content of a token sees the
token itself, the query that must name it sees its position only. Only the last 1/K of the order is asked (partial
prediction); the tokens before it see each other, as in the reference implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from pipelines.objectives.objective import Collate, Objective
from pipelines.protocols import Head


class PermutationLM(Objective):
    """Name tokens in a random order."""

    name: Literal["permutation_lm"] = "permutation_lm"
    k: int = Field(6, ge=1, le=1000)
    """One in k tokens is asked: the last of the order. The paper has 6."""
    max_span_length: int = Field(1, ge=1, le=100)
    """1 asks single tokens; above that, runs of 1 to so many neighbours (the paper's larger model: 5, section 3.1)."""

    layout: ClassVar[Literal["blocks", "stream", "sentences"]] = "stream"

    @property
    def head(self) -> Head:
        """The head that names tokens."""
        return Head("causal_lm")

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        """Only XLNet has two streams of attention."""
        model_type = architecture.get("model_type", "finery")
        if model_type == "xlnet":
            return None
        return f"needs attention in two streams, which {model_type} has not; use model_type: xlnet"

    def collate(self, tokenizer: Any, seed: int, config: Any = None) -> Collate:
        """A function from examples to a batch in which each example has an order of its own. Raises ModelError."""
        from pipelines.objectives.permutation import Permutation

        return Permutation.of(self, tokenizer, seed)
