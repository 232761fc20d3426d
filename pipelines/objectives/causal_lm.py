"""Causal language modelling: name each token from those before it.

Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", section 3.1, equation 1. Documents
stand one after another in a stream, each followed by the token that ends texts, as for GPT-2 (Radford et al. 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import IGNORED, Head
from pipelines.core.model_types import sees_ahead
from pipelines.objectives.batches import Flags, Ids, padded_and_real, tensors
from pipelines.objectives.objective import Collate, Objective

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


class CausalLM(Objective):
    """Name the next token."""

    name: Literal["causal_lm"] = "causal_lm"
    redraws: ClassVar[bool] = False

    layout: ClassVar[Literal["blocks", "stream", "sentences"]] = "stream"
    causal: ClassVar[bool] = True
    separates: ClassVar[bool] = True
    by_sequences: ClassVar[bool] = True
    every_token: ClassVar[bool] = True
    text_scores: ClassVar[tuple[str, ...]] = ("bits_per_byte", "perplexity")

    @property
    def head(self) -> Head:
        """The head that names the next token."""
        return Head("causal_lm")

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        """Models that see both ways would only have to copy."""
        return sees_ahead(architecture)

    def collate(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig | None = None) -> Collate:
        """A function from examples to a batch; nothing in it is random."""

        return NextTokens.of(tokenizer)


@dataclass(frozen=True)
class NextTokens:
    """The collator of causal language models."""

    pad_id: int | None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> NextTokens:
        """The collator for a tokenizer; one without a padding token serves as long as all examples are equally long."""
        return cls(tokenizer.pad_token_id)

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask`, and `labels`: at each position the token that follows."""
        import numpy as np

        ids, real, labels = self.following(examples)
        return tensors(input_ids=ids, attention_mask=real.astype(np.int64), labels=labels)

    def following(self, examples: Sequence[dict[str, Any]]) -> tuple[Ids, Flags, Ids]:
        """Ids, where they are real, and labels, all (batch, length). Raises ModelError."""
        import numpy as np

        rows = [example["input_ids"] for example in examples]
        if self.pad_id is None and len({len(row) for row in rows}) > 1:
            raise ModelError("the tokenizer has no padding token, which batches of unequal length need; set pad_token")
        ids, real = padded_and_real(rows, self.pad_id or 0)
        labels = np.full_like(ids, IGNORED)
        labels[:, :-1] = np.where(real[:, 1:], ids[:, 1:], IGNORED)
        return ids, real, labels
