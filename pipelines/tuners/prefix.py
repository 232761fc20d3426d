"""Prefix tuning: learn keys and values that precede every layer's own. Li and Liang 2021, arxiv.org/abs/2101.00190.

Without an MLP that is `num_virtual_tokens * 2 * layers * key-value heads * head_dim` weights, also called P-tuning v2
(Liu et al. 2022, arxiv.org/abs/2110.07602). With `prefix_projection`, section 4.3's reparameterization, a two-layer MLP
computes them from one small vector a token; it is dropped when training ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from pipelines.architectures.configuration_rules import Config
from pipelines.core.config import ConfigIssues
from pipelines.core.errors import IncompatibleError
from pipelines.tuners.soft_prompt import SoftPrompt

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

NO_PLACE = frozenset(
    {
        "bailing_hybrid", "bamba", "big_bird", "convbert", "deberta", "deberta-v2", "esmc", "falcon_mamba",
        "flaubert", "fnet", "funnel", "granitemoehybrid", "hrm_text", "ibert", "inkling2_text", "inkling_text",
        "jamba", "kimi_linear", "layoutlm", "longformer", "luke", "mamba", "mamba2", "mobilebert", "mpnet",
        "mra", "neomme", "nystromformer", "olmo_hybrid", "openai-gpt", "perceiver", "qwen3_5_moe_text",
        "qwen3_5_text", "qwen3_next", "recurrent_gemma", "reformer", "rwkv", "squeezebert", "tapas",
        "ultrabert", "xlm", "xlnet", "xlstm", "yoso", "zamba", "zamba2",
    }
)  # fmt: skip
"""Families with layers that have no attention, or one that takes no keys and values from outside."""


class Prefix(SoftPrompt):
    """Learn keys and values before those of every layer; everything else stays frozen."""

    name: Literal["prefix"] = "prefix"
    prefix_projection: bool = False
    """Compute the prefix by a two-layer MLP while training, which the paper found more stable."""
    encoder_hidden_size: int | None = Field(None, ge=1)
    """Inner width of that MLP. Default: the width of the keys. The paper has 512 for table-to-text and 800 for
    summaries."""
    init_weights: Literal["random", "zero"] = "random"
    """How the prefix begins: drawn from N(0, 1), or as keys and values of zeros."""

    @model_validator(mode="after")
    def _no_width_without_mlp(self) -> Prefix:
        if self.encoder_hidden_size is not None and not self.prefix_projection:
            raise ConfigIssues(
                [(("encoder_hidden_size",), "is the width of an MLP that only prefix_projection: true has")]
            )
        return self

    def misfit(self, words: Config, head: str) -> str | None:
        """Why keys and values cannot be put before a model's own; None when they can."""
        if (model_type := words.get("model_type")) in NO_PLACE:
            return (
                "needs an attention in every layer that takes keys and values from outside, which "
                f"{model_type} does not have; "
                "use prompt, p_tuning or lora"
            )
        return None

    def check_place(self, model: PreTrainedModel) -> None:
        """Raises IncompatibleError where attention takes no keys and values from outside."""
        from pipelines.tuners.virtual_tokens import attentions, decoding_stack

        if not attentions(model):
            raise IncompatibleError(
                "the tuner prefix needs an attention that takes keys and values from outside, but "
                f"{type(decoding_stack(model)).__name__} "
                "has none; use prompt, p_tuning or lora"
            )

    def apply(self, model: PreTrainedModel) -> PreTrainedModel | PeftModel:
        """A PEFT model around `model`. Raises IncompatibleError where attention takes no keys from outside."""
        return self.tuned(
            model,
            "PREFIX_TUNING",
            prefix_projection=self.prefix_projection,
            encoder_hidden_size=self.encoder_hidden_size,
            init_weights="zero" if self.init_weights == "zero" else None,
        )
