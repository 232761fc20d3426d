"""Causal language modelling: name each token from those before it.

Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", section 3.1, equation 1. Documents
stand one after another in a stream, each followed by the token that ends texts, as for GPT-2 (Radford et al. 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pipelines.objectives.causal_models import sees_ahead
from pipelines.objectives.objective import Collate, Objective
from pipelines.protocols import Head


class CausalLM(Objective):
    """Name the next token."""

    name: Literal["causal_lm"] = "causal_lm"

    layout: ClassVar[Literal["blocks", "stream", "sentences"]] = "stream"
    causal: ClassVar[bool] = True
    separates: ClassVar[bool] = True

    @property
    def head(self) -> Head:
        """The head that names the next token."""
        return Head("causal_lm")

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        """Models that see both ways would only have to copy."""
        return sees_ahead(architecture)

    def collate(self, tokenizer: Any, seed: int, config: Any = None) -> Collate:
        """A function from examples to a batch; nothing in it is random."""
        from pipelines.objectives.next_tokens import NextTokens

        return NextTokens.of(tokenizer)
