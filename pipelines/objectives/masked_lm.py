"""Masked language modelling: hide some tokens, and learn to name them from what stands around.

Devlin et al. 2019, "BERT", section 3.1, arxiv.org/abs/1810.04805: 15 % of the tokens are chosen; of these 80 % become
[MASK], 10 % a random token, 10 % stay, so that the model cannot rely on seeing [MASK]. The choice is made anew in
every epoch (dynamic masking, Liu et al. 2019, section 4.1, arxiv.org/abs/1907.11692). Whole-word masking chooses words
instead of pieces (the BERT repository's README, "Whole Word Masking", May 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from pipelines.blocks import Block, Mistakes
from pipelines.protocols import Head

if TYPE_CHECKING:
    from torch import Tensor


class MaskedLM(Block):
    """Name the tokens that were hidden."""

    name: Literal["masked_lm"] = "masked_lm"
    probability: float = Field(0.15, gt=0, lt=1)
    """The share of the tokens that is asked for."""
    replace_with_mask: float = Field(0.8, ge=0, le=1)
    """The share of these that becomes the mask token."""
    replace_with_random: float = Field(0.1, ge=0, le=1)
    """The share of these that becomes a random token; the rest stays as it is."""
    whole_word: bool = False
    """Whether all pieces of a word are chosen together."""

    @model_validator(mode="after")
    def _shares_fit(self) -> MaskedLM:
        total = self.replace_with_mask + self.replace_with_random
        if total > 1 + 1e-9:
            problem = f"and replace_with_mask add up to {total:g}, must be at most 1"
            raise Mistakes([(("replace_with_random",), problem)])
        return self

    @property
    def head(self) -> Head:
        """The head that names tokens."""
        return Head("masked_lm")

    def collate(self, tokenizer: Any, seed: int) -> Callable[[Sequence[dict[str, Any]]], dict[str, Tensor]]:
        """A function from examples to a masked batch.

        Each example has `input_ids` and `draw`, a number of its own in every epoch (such as epoch × examples + index):
        seed and draw alone decide its masks, whatever batch, process or resumed run it is part of. Raises ModelError.
        """
        from pipelines.objectives.masking import Masking

        return Masking.of(self, tokenizer, seed)
