"""BitFit: only the biases learn. Ben Zaken et al. 2022, arxiv.org/abs/2106.10199.

"All biases" are those of the linear layers and of the layer norms (section 3, equations 1 to 5). The small variant
keeps to the bias of the query and that of the feed-forward's first matrix, the paper's b_q and b_m2 (section 4, "fewer
bias parameters"). Modules that the checkpoint did not bring, the head of the task above all, learn whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pipelines.architectures.configuration_rules import Config
from pipelines.core.errors import IncompatibleError
from pipelines.tuners.layer_groups import in_body, new_weights
from pipelines.tuners.tuner import TunerBlock

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

QUERY = ("query", "query_proj", "q_proj", "q_lin", "q", "q_head")
"""What the projection of the queries is called."""
INTERMEDIATE = (
    "intermediate",
    "intermediate.dense",
    "fc1",
    "lin1",
    "c_fc",
    "ffn",
    "wi",
    "up_proj",
    "layer_1",
    "linear_1",
)
"""What the feed-forward's first matrix is called."""
BIAS_WORDS: dict[str, tuple[str, ...]] = {
    "t5": (), "mt5": (), "umt5": (), "switch_transformers": (), "longt5": (), "mistral": (), "mixtral": (),
    "gemma": ("attention_bias",), "gemma2": ("attention_bias",), "llama": ("attention_bias", "mlp_bias"),
    "qwen3": ("attention_bias",),
    "modernbert": ("attention_bias", "mlp_bias", "norm_bias"), "olmo2": ("attention_bias",),
}  # fmt: skip
"""Model types whose bodies have biases only where one of these config words is true. All others have some."""


class BitFit(TunerBlock):
    """Train the biases, and the modules that the checkpoint did not bring."""

    name: Literal["bitfit"] = "bitfit"
    biases: Literal["all", "query_and_intermediate"] = "all"
    """Which biases of the body learn: all, or those of the queries and of the feed-forward's first matrix, half the
    number."""

    def misfit(self, words: Config, head: str) -> str | None:
        """A body without biases has nothing to learn."""
        kind = str(words.get("model_type"))
        if kind == "finery":
            norm = words.get("norm_type", "layer_norm") == "layer_norm" and words.get("norm_bias", True)
            some = norm or words.get("attention_bias", True) or words.get("mlp_bias", True)
        else:
            some = kind not in BIAS_WORDS or any(words.get(word) for word in BIAS_WORDS[kind])
        return None if some else f"trains biases, but this {kind} has none; use lora, or give the architecture biases"

    def apply(self, model: PreTrainedModel) -> PreTrainedModel | PeftModel:
        """The same model. Raises IncompatibleError when its body has no bias of the wanted kind."""
        biases = [name for name, _ in model.named_parameters() if _is_bias(name)]
        body = [name for name in biases if in_body(model, name)]
        if not body:
            raise IncompatibleError(f"bitfit trains biases, but the body of {type(model).__name__} has none; use lora")
        if self.biases == "query_and_intermediate":
            query, intermediate = _of(QUERY, body), _of(INTERMEDIATE, body)
            if not query or not intermediate:
                lacking = "feed-forward's first matrix" if query else "query"
                raise IncompatibleError(
                    f"bitfit.biases is query_and_intermediate, but {type(model).__name__} has no bias of the "
                    f"{lacking} alone; use all"
                )
            biases = query + intermediate
        learning = {*biases, *new_weights(model)}
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in learning)
        return model


def _is_bias(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last == "bias" or last.endswith("_bias")


def _of(modules: tuple[str, ...], names: list[str]) -> list[str]:
    """Those of the parameters that belong to a module whose name ends so."""
    owners = tuple(f".{module}" for module in modules)
    return [name for name in names if f".{name.rpartition('.')[0]}".endswith(owners)]
