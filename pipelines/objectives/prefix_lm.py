"""Prefix language modelling: read the first part of a text both ways, and name what follows token by token.

Dong et al. 2019, "UniLM", section 2.3 (sequence-to-sequence masks), arxiv.org/abs/1905.03197; Raffel et al. 2020, "T5",
section 3.2.1 (masks) and 3.2.3 (a prefix of random length, loss on the rest only), arxiv.org/abs/1910.10683.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pipelines.core.interfaces import Head
from pipelines.core.model_types import sees_ahead, takes_masks
from pipelines.objectives.objective import Collate, Objective


class PrefixLM(Objective):
    """Name the tokens behind a prefix of random length."""

    name: Literal["prefix_lm"] = "prefix_lm"

    layout: ClassVar[Literal["blocks", "stream", "sentences"]] = "stream"
    causal: ClassVar[bool] = True
    separates: ClassVar[bool] = True

    @property
    def head(self) -> Head:
        """The head that names the next token."""
        return Head("causal_lm")

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        """Decoders serve whose attention can be told who sees whom."""
        if architecture.get("attention_pattern") == "sliding_window":
            return "reads a prefix as a whole, of which attention_pattern sliding_window would show a part only; use attention_pattern: causal"
        return sees_ahead(architecture) or takes_masks(architecture)

    def collate(self, tokenizer: Any, seed: int, config: Any = None) -> Collate:
        """A function from examples to a batch in which each example has a prefix of its own."""
        from pipelines.objectives.causal_lm import Prefixed

        ours = config is None or config.model_type == "finery"
        return Prefixed(tokenizer.pad_token_id, seed, ours)
