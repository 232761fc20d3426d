"""Only the head learns, or the head and the last layers: the control that says what the frozen body already knows.

Howard and Ruder 2018, section 4.3 ("Last"), arxiv.org/abs/1801.06146; with layers, Lee et al. 2019, "What Would Elsa
Do? Freezing Layers During Transformer Fine-Tuning", arxiv.org/abs/1911.03090.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from pipelines.architectures.configuration_rules import Config
from pipelines.core.errors import IncompatibleError
from pipelines.tuners.layer_groups import HEAD, layer_groups
from pipelines.tuners.tuner import TunerBlock

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

WORD_HEADS = ("causal_lm", "seq2seq_lm")
"""Heads that are one matrix, usually the embeddings' own."""


class LastLayer(TunerBlock):
    """Train the head, and the last layers on demand."""

    name: Literal["last_layer"] = "last_layer"
    any_layers: ClassVar[bool] = True
    layers: int = Field(0, ge=0)
    """How many layers below the head learn too."""

    def misfit(self, words: Config, head: str) -> str | None:
        """A language model's head is usually the embeddings, with no weight of its own; layers are counted too."""
        depth = words.get("num_hidden_layers")
        if (
            words.get("model_type") == "finery"
            and words.get("family") != "encoder-decoder"
            and isinstance(depth, int)
            and self.layers > depth
        ):
            return f"has layers {self.layers}, but the model has {depth} layers; lower it, or use full"
        own_bias = words.get("lm_head_bias") if words.get("model_type") == "finery" else None
        if self.layers == 0 and head in WORD_HEADS and words.get("tie_word_embeddings", True) and not own_bias:
            return (
                "trains a head of its own, but a language model's is the matrix of its embeddings; set "
                "last_layer.layers to at least 1"
            )
        return None

    def apply(self, model: PreTrainedModel) -> PreTrainedModel | PeftModel:
        """The same model. Raises IncompatibleError when it has fewer layers, or a head without weights of its own."""
        groups = layer_groups(model)
        below = [group for group in groups if group.name != HEAD]
        if self.layers >= len(below):
            raise IncompatibleError(
                f"last_layer.layers is {self.layers}, but the model has {len(below) - 1} layers; lower it, or use full"
            )
        learning = {name for group in groups if group.name == HEAD for name in group.parameters}
        learning |= {name for group in below[len(below) - self.layers :] for name in group.parameters}
        if not learning:
            raise IncompatibleError(
                f"last_layer trains a head of its own, but the head of {type(model).__name__} is the matrix "
                "of its embeddings; "
                "set last_layer.layers to at least 1"
            )
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in learning)
        return model
