"""Bidirectional language modelling: name each word from those before it, and again from those behind it.

Peters et al. 2018, "Deep contextualized word representations" (ELMo), section 3.1, arxiv.org/abs/1802.05365: the sum
of the log-likelihoods of a language model that reads forwards and of one that reads backwards. Both read and score
words by one table, their cells are their own, and neither ever sees the other's states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pipelines.core.costs import Example
from pipelines.core.interfaces import IGNORED, Head
from pipelines.core.model_types import RECURRENT
from pipelines.objectives.batches import padded_and_real, padding_token, tensors
from pipelines.objectives.objective import Collate, Objective

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


class BidirectionalLM(Objective):
    """Name the next token from the left, and the one before from the right."""

    name: Literal["bidirectional_lm"] = "bidirectional_lm"
    redraws: ClassVar[bool] = False
    unaskable: ClassVar[str] = "names every word from both sides, which no prompt's likelihood follows from"

    @property
    def head(self) -> Head:
        """The head that names both."""
        return Head("bidirectional_lm")

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        """Two networks are needed that never see each other."""
        if architecture.get("model_type", "finery") != RECURRENT:
            return "needs a recurrent encoder: family rnn with stack: encoder and separate_directions: true"
        if architecture.get("stack", "encoder-decoder") != "encoder" or not architecture.get("separate_directions"):
            return "needs two networks that never see each other's words: stack: encoder with separate_directions: true"
        return None

    def example(self, block_size: int) -> Example:
        """Every token but an end is named twice."""
        return Example(block_size, block_size, 2 * (block_size - 1))

    def collate(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig | None = None) -> Collate:
        """A function from examples to a batch; nothing in it is random."""
        return Neighbours(padding_token(tokenizer))


@dataclass(frozen=True)
class Neighbours:
    """The collator: what comes next at each place, then what came before."""

    pad_id: int

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask` (batch, length), and `labels` (batch, 2 · length)."""
        import numpy as np

        ids, real = padded_and_real([example["input_ids"] for example in examples], self.pad_id)
        following, before = np.full_like(ids, IGNORED), np.full_like(ids, IGNORED)
        following[:, :-1] = np.where(real[:, 1:], ids[:, 1:], IGNORED)
        before[:, 1:] = np.where(real[:, 1:], ids[:, :-1], IGNORED)
        return tensors(
            input_ids=ids, attention_mask=real.astype(np.int64), labels=np.concatenate([following, before], axis=1)
        )
