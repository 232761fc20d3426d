"""Sequence to sequence: the decoder writes a target, given the source and the right beginning of the target.

Sutskever et al. 2014, "Sequence to Sequence Learning with Neural Networks", section 2, arxiv.org/abs/1409.3215, with
the label smoothing of 0.1 of Vaswani et al. 2017, section 5.4, arxiv.org/abs/1706.03762: it makes the perplexity worse
and BLEU better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core.interfaces import Head
from pipelines.models.checkpoint import start_token
from pipelines.objectives.attention_masks import decoder_sees_ahead
from pipelines.objectives.batches import padded, padding_token, taught
from pipelines.objectives.objective import Collate, Objective

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.utils import ModelOutput


class Seq2SeqObjective(Objective):
    """Write the target token by token."""

    name: Literal["seq2seq"] = "seq2seq"
    redraws: ClassVar[bool] = False
    pairs: ClassVar[bool] = True
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """The share of the probability that is asked of all tokens alike, and not of the right one."""

    @property
    def head(self) -> Head:
        """The head that writes."""
        return Head("seq2seq_lm")

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        return decoder_sees_ahead(architecture)

    def collate(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig | None = None) -> Collate:
        """Examples have `input_ids` and, as `labels`, the target's ids; nothing here is random."""

        return SourcesAndTargets(start_token(config, tokenizer), padding_token(tokenizer))

    def loss(self, model: PreTrainedModel, batch: dict[str, Tensor]) -> tuple[Tensor, ModelOutput]:
        """Cross-entropy against smoothed targets, summed over the tokens of the target (1,)."""
        from pipelines.objectives.losses import token_loss

        total, outputs = token_loss(model, batch, self.label_smoothing)
        return total.reshape(1), outputs


@dataclass(frozen=True)
class SourcesAndTargets:
    """The collator of Seq2SeqObjective."""

    start: int
    padding: int

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Sources as `input_ids`, targets as `labels` and, one to the right, as `decoder_input_ids`.

        A target that begins with the very token that the decoder begins with is not asked for it.
        """
        targets = [example["labels"] for example in examples]
        targets = [target[1:] if len(target) > 1 and target[0] == self.start else target for target in targets]
        source = padded([example["input_ids"] for example in examples], self.padding)
        return taught(source, padded(targets, self.padding), self.start)
