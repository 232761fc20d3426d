"""Prefix language modelling: read the first part of a text both ways, and name what follows token by token.

Dong et al. 2019, "UniLM", section 2.3 (sequence-to-sequence masks), arxiv.org/abs/1905.03197; Raffel et al. 2020, "T5",
section 3.2.1 (masks) and 3.2.3 (a prefix of random length, loss on the rest only), arxiv.org/abs/1910.10683.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pipelines.core.interfaces import IGNORED, Head
from pipelines.core.model_types import sees_ahead, takes_masks
from pipelines.data.randomness import uniforms
from pipelines.objectives.attention_masks import additive, earlier
from pipelines.objectives.batches import draws_of, tensors
from pipelines.objectives.causal_lm import NextTokens
from pipelines.objectives.objective import Collate, Objective

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

PREFIX = 0
"""Stream of random numbers: where the prefix ends."""


class PrefixLM(Objective):
    """Name the tokens behind a prefix of random length."""

    name: Literal["prefix_lm"] = "prefix_lm"

    layout: ClassVar[Literal["blocks", "stream", "sentences"]] = "stream"
    causal: ClassVar[bool] = True
    separates: ClassVar[bool] = True
    own_masks: ClassVar[bool] = True
    prefix_both_ways: ClassVar[bool] = True
    text_scores: ClassVar[tuple[str, ...]] = ("bits_per_byte", "perplexity")

    @property
    def head(self) -> Head:
        """The head that names the next token."""
        return Head("causal_lm")

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        """Decoders serve whose attention can be told who sees whom."""
        if architecture.get("attention_pattern") == "sliding_window":
            return (
                "reads a prefix as a whole, of which attention_pattern sliding_window would show a part only; "
                "use attention_pattern: causal"
            )
        return sees_ahead(architecture) or takes_masks(architecture)

    def collate(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig | None = None) -> Collate:
        """A function from examples to a batch in which each example has a prefix of its own."""
        ours = config is None or config.model_type == "finery"
        return Prefixed(tokenizer.pad_token_id, seed, ours)


@dataclass(frozen=True)
class Prefixed(NextTokens):
    """The collator of prefix language models: nothing within the prefix is asked."""

    seed: int
    ours: bool
    """Whether the model takes `prefix_length`; others take a ready mask."""

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask`, `labels`, and for our own models `prefix_length` (batch,)."""
        import numpy as np

        ids, real, labels = self.following(examples)
        lengths = real.sum(1)
        luck = uniforms(self.seed, PREFIX, draws_of(examples), 1)[:, 0]
        prefix = 1 + (luck * np.maximum(lengths - 1, 1)).astype(np.int64)  # from 1 to length - 1
        position = np.arange(ids.shape[1])[None, :]
        # Position prefix - 1 names the first token beyond.
        labels = np.where(position < prefix[:, None] - 1, IGNORED, labels)
        if self.ours:
            return tensors(input_ids=ids, attention_mask=real.astype(np.int64), labels=labels, prefix_length=prefix)
        allowed = earlier(ids.shape[1], prefix) & (real[:, None, :] | np.eye(ids.shape[1], dtype=np.bool_))
        return tensors(input_ids=ids, attention_mask=additive(allowed), labels=labels)
