"""Masked language modelling: hide some tokens, and learn to name them from what stands around.

Devlin et al. 2019, "BERT", section 3.1, arxiv.org/abs/1810.04805: 15 % of the tokens are chosen; of these 80 % become
[MASK], 10 % a random token, 10 % stay, so that the model cannot rely on seeing [MASK]. The choice is made anew in
every epoch (dynamic masking, Liu et al. 2019, section 4.1, arxiv.org/abs/1907.11692). Whole-word masking chooses words
instead of pieces (the BERT repository's README, "Whole Word Masking", May 2019).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from pipelines.blocks import Mistakes
from pipelines.objectives.objective import Collate, Objective
from pipelines.protocols import Head


class Masked(Objective):
    """Base of the objectives that hide tokens."""

    probability: float = Field(0.15, gt=0, lt=1)
    """The share of the tokens that is asked for."""
    replace_with_mask: float = Field(0.8, ge=0, le=1)
    """The share of these that becomes the mask token."""
    replace_with_random: float = Field(0.1, ge=0, le=1)
    """The share of these that becomes a random token; the rest stays as it is."""
    whole_word: bool = False
    """Whether all pieces of a word are chosen together."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Masked:
        total = self.replace_with_mask + self.replace_with_random
        if total > 1 + 1e-9:
            problem = f"and replace_with_mask add up to {total:g}, must be at most 1"
            raise Mistakes([(("replace_with_random",), problem)])
        return self


class MaskedLM(Masked):
    """Name the tokens that were hidden."""

    name: Literal["masked_lm"] = "masked_lm"

    separates: ClassVar[bool] = True

    @property
    def head(self) -> Head:
        """The head that names tokens."""
        return Head("masked_lm")

    def collate(self, tokenizer: Any, seed: int, config: Any = None) -> Collate:
        """A function from examples to a masked batch. Raises ModelError when the tokenizer has no mask token."""
        from pipelines.objectives.masking import Masking

        return Masking.of(self, tokenizer, seed)
