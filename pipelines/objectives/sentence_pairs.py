"""Masked LM on pairs of segments, with a second question about the pair: the base of next_sentence and sentence_order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from pipelines.objectives.masked_lm import Masked
from pipelines.objectives.objective import Collate
from pipelines.protocols import Head

if TYPE_CHECKING:
    from torch import Tensor

TWO_HEADS = ("albert", "bert", "big_bird", "ernie", "fnet", "finery", "megatron-bert", "mobilebert")
"""Model types that have a head for tokens and one for pairs."""


class SentencePairs(Masked):
    """Base: hide tokens of two segments, and ask one question about the pair."""

    pair_weight: float = Field(1.0, gt=0)
    """How much the question about the pair counts beside the hidden tokens."""
    short_seq_probability: float = Field(0.1, ge=0, le=1)
    """The share of the pairs that take fewer sentences than fit, so that short texts are known too."""

    layout: ClassVar[Literal["blocks", "stream", "sentences"]] = "sentences"

    @property
    def head(self) -> Head:
        """Heads for tokens and for the pair."""
        return Head("pretraining")

    @property
    def label_names(self) -> Mapping[str, float]:
        """The hidden tokens, and the pairs."""
        return {"labels": 1.0, "pair_labels": self.pair_weight}

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        """Only encoders with a head for pairs serve."""
        model_type = architecture.get("model_type", "finery")
        if model_type not in TWO_HEADS:
            return f"needs a model with a head for pairs of segments, which {model_type} has not; model types that have one: {', '.join(TWO_HEADS)}"
        if architecture.get("family", "encoder") != "encoder":
            return f"needs a model of the family encoder, not {architecture['family']}"
        return None

    def collate(self, tokenizer: Any, seed: int, config: Any = None) -> Collate:
        """A function from spans of sentences to a masked batch of pairs. Raises ModelError."""
        from pipelines.objectives.pairing import Pairing

        return Pairing.of(self, tokenizer, seed, config)

    def loss(self, model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
        """Cross-entropy of the hidden tokens and of the pairs, summed (2,)."""
        from pipelines.objectives.losses import pretraining_loss

        return pretraining_loss(model, batch)
