"""Denoising: the encoder reads a damaged text, and the decoder writes the original.

Lewis et al. 2020, "BART", section 2.2 and figure 2, arxiv.org/abs/1910.13461: text infilling (spans of Poisson length
become one mask each, an empty span is a mask put in) and sentence permutation; token deletion and document rotation
are there to be switched on. Section 5.1: 30 % of the tokens are masked and all sentences permuted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from pipelines.blocks import Mistakes
from pipelines.objectives import teacher_forcing
from pipelines.objectives.objective import Collate, Objective
from pipelines.protocols import Head


class Denoising(Objective):
    """Write the text that was damaged."""

    name: Literal["denoising"] = "denoising"
    mask_ratio: float = Field(0.3, ge=0, le=0.9)
    """Text infilling: the share of the tokens that lies in masked spans, each span one mask."""
    poisson_lambda: float = Field(3.0, ge=0.5, le=50)
    """Tokens of a masked span, on average; lengths are drawn from a Poisson distribution, and may be 0."""
    permute_sentences: bool = True
    """Whether the sentences are put in random order; a sentence ends with a full stop."""
    delete_ratio: float = Field(0.0, ge=0, le=0.9)
    """Token deletion: the probability that a token disappears without a mask."""
    rotate: float = Field(0.0, ge=0, le=1)
    """Document rotation: the probability that the text begins at a random token and its beginning follows its end."""

    @model_validator(mode="after")
    def _damages_something(self) -> Denoising:
        if not (self.mask_ratio or self.permute_sentences or self.delete_ratio or self.rotate):
            problem = "is 0 and nothing else is switched on, so the text would not be damaged at all; raise one"
            raise Mistakes([(("mask_ratio",), problem)])
        return self

    @property
    def head(self) -> Head:
        """The head that writes the text."""
        return Head("seq2seq_lm")

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        return teacher_forcing.misfit(architecture)

    def collate(self, tokenizer: Any, seed: int, config: Any = None) -> Collate:
        from pipelines.objectives.damage import Damage

        return Damage.of(self, tokenizer, seed, config)
