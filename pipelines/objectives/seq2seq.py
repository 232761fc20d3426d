"""Sequence to sequence: the decoder writes a target, given the source and the right beginning of the target.

Sutskever et al. 2014, "Sequence to Sequence Learning with Neural Networks", section 2, arxiv.org/abs/1409.3215, with
the label smoothing of 0.1 of Vaswani et al. 2017, section 5.4, arxiv.org/abs/1706.03762: it makes the perplexity worse
and BLEU better.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from pipelines.objectives import teacher_forcing
from pipelines.objectives.objective import Collate, Objective
from pipelines.protocols import Head

if TYPE_CHECKING:
    from torch import Tensor


class Seq2Seq(Objective):
    """Write the target token by token."""

    name: Literal["seq2seq"] = "seq2seq"
    pairs: ClassVar[bool] = True
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """The share of the probability that is asked of all tokens alike, and not of the right one."""

    @property
    def head(self) -> Head:
        """The head that writes."""
        return Head("seq2seq_lm")

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        return teacher_forcing.misfit(architecture)

    def collate(self, tokenizer: Any, seed: int, config: Any = None) -> Collate:
        """Examples have `input_ids` and, as `labels`, the target's ids; nothing here is random."""
        from pipelines.objectives.translation_pairs import Pairs

        return Pairs.of(tokenizer, config)

    def loss(self, model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
        from pipelines.objectives.translation_pairs import smoothed_loss

        return smoothed_loss(model, batch, self.label_smoothing)
