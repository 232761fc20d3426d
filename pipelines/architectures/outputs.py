"""Outputs of heads that transformers has no class for, or only inside of another model's file."""

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast, Seq2SeqLMOutput
from transformers.utils import ModelOutput


@dataclass
class FineryForPreTrainingOutput(ModelOutput):
    """BERT's: `prediction_logits` (batch, query, vocab) and `seq_relationship_logits` (batch, 2)."""

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass
class FineryCausalLMOutputWithValue(CausalLMOutputWithPast):
    """`value` (batch, length) beside the next word: what the rest of the text is expected to be worth."""

    value: Tensor | None = None


@dataclass
class FinerySeq2SeqLMOutput(Seq2SeqLMOutput):
    """`length_logits` (batch, lengths): a score for each number of tokens that the output may have."""

    length_logits: Tensor | None = None
