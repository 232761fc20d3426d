"""P-tuning: embeddings before those of words, computed by a small network. Liu et al. 2021, arxiv.org/abs/2103.10385.

Section 3.2 of the paper: independent embeddings are hard to train, so an LSTM or an MLP makes them depend on each
other. The network is dropped when training ends; what is left is what prompt tuning leaves, `num_virtual_tokens *
embedding width`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from pipelines.core.config import ConfigIssues
from pipelines.tuners.soft_prompt import SoftPrompt

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


class PTuning(SoftPrompt):
    """Learn a small network that writes embeddings before those of every text; everything else stays frozen."""

    name: Literal["p_tuning"] = "p_tuning"
    encoder_reparameterization_type: Literal["MLP", "LSTM"] = "MLP"
    """The network: three linear layers with ReLU, or a bidirectional LSTM and two linear layers."""
    encoder_hidden_size: int | None = Field(None, ge=1)
    """Inner width of the network. Default: the width of the embeddings."""
    encoder_num_layers: int = Field(2, ge=1, le=16)
    """Layers of the LSTM."""
    encoder_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout between the layers of the LSTM."""

    @model_validator(mode="after")
    def _only_for_an_lstm(self) -> PTuning:
        given = [key for key in ("encoder_num_layers", "encoder_dropout") if key in self.model_fields_set]
        if self.encoder_reparameterization_type == "MLP" and given:
            raise ConfigIssues(
                [((key,), "is for an LSTM, but encoder_reparameterization_type is MLP; leave it out") for key in given]
            )
        if self.encoder_dropout and self.encoder_num_layers == 1:
            raise ConfigIssues(
                [(("encoder_dropout",), "lies between the layers of the LSTM, but encoder_num_layers is 1")]
            )
        return self

    def apply(self, model: PreTrainedModel) -> PreTrainedModel | PeftModel:
        """A PEFT model around `model`. Raises IncompatibleError when it cannot read embeddings."""
        return self.tuned(
            model,
            "P_TUNING",
            encoder_reparameterization_type=self.encoder_reparameterization_type,
            encoder_hidden_size=self.encoder_hidden_size,
            encoder_num_layers=self.encoder_num_layers,
            encoder_dropout=self.encoder_dropout,
        )
