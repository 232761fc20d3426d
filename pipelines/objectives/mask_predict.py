"""Mask-predict: the decoder sees both sides of the target's hidden tokens, and names them all at once.

Ghazvininejad et al. 2019, "Mask-Predict: Parallel Decoding of Conditional Masked Language Models", sections 2 and 3,
arxiv.org/abs/1904.09324. In training the number of hidden tokens is uniform between one and the length of the target
(section 2.2), and the encoder learns to predict that length, whose loss is added (section 2.3). Decoding begins with
all tokens hidden and hides the least certain ones again and again (section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from pipelines.objectives.objective import Collate, Objective
from pipelines.protocols import Head

if TYPE_CHECKING:
    from torch import Tensor


class MaskPredict(Objective):
    """Name the hidden tokens of the target, and its length."""

    name: Literal["mask_predict"] = "mask_predict"
    pairs: ClassVar[bool] = True
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """The share of the probability that is asked of all tokens alike, and not of the right one."""
    length_weight: float = Field(1.0, gt=0)
    """The weight of the length's loss beside the tokens'."""

    @property
    def head(self) -> Head:
        """The head that names tokens."""
        return Head("seq2seq_lm")

    @property
    def label_names(self) -> Mapping[str, float]:
        return {"labels": 1.0, "length_labels": self.length_weight}

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        if architecture.get("model_type", "finery") != "finery" or architecture.get("family") != "encoder-decoder":
            return (
                "needs a decoder that looks both ways and an encoder that predicts lengths: those of the finery family with "
                "family: encoder-decoder, bidirectional_decoder: true and length_prediction: true; use them, or seq2seq"
            )
        wanted = [word for word in ("bidirectional_decoder", "length_prediction") if not architecture.get(word)]
        if wanted:
            words = " and ".join(f"{word}: true" for word in wanted)
            return f"needs a decoder that looks both ways and an encoder that predicts lengths; add {words} to model.architecture, or use seq2seq"
        return None

    def collate(self, tokenizer: Any, seed: int, config: Any = None) -> Collate:
        """Examples have `input_ids`, `draw` and, as `labels`, the target's ids."""
        from pipelines.objectives.target_masking import TargetMasking

        return TargetMasking.of(tokenizer, seed, config)

    def loss(self, model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
        from pipelines.objectives.target_masking import token_and_length_losses

        return token_and_length_losses(model, batch, self.label_smoothing)
