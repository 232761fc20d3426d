"""(IA)^3: learn to amplify or inhibit inner activations. Liu et al. 2022, section 3.3, arxiv.org/abs/2205.05638.

A vector beside each key, each value and each inner activation of the feed-forward networks multiplies it, element by
element: softmax(Q (l_k * K)^T / sqrt(d)) (l_v * V) and (l_ff * f(W1 x)) W2. All begin at one, so nothing changes at
first, and all can be folded into the matrices around them.

Where one matrix gives queries, keys and values at once (GPT-2, ModernBERT) its whole output is scaled, as PEFT does.
Nothing else becomes possible by that: without rotary positions, scaling a query is scaling the key it is multiplied
with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from pipelines.architectures.configuration_rules import Config
from pipelines.core.config import ConfigIssues
from pipelines.core.errors import IncompatibleError
from pipelines.tuners.target_modules import (
    body_layers,
    chosen,
    ends,
    feed_forward_ends,
    is_transposed,
    key_value_layers,
    trained_whole,
)
from pipelines.tuners.tuner import TunerBlock

if TYPE_CHECKING:
    from peft import PeftModel
    from torch.nn import Module
    from transformers import PreTrainedModel

UNFIT: Mapping[str, str] = {
    "xlnet": "multiplies bare parameters for keys and values",
    "fnet": "mixes tokens by a Fourier transform, without keys and values",
    "squeezebert": "has convolutions in place of linear layers",
    "ibert": "has quantized layers of its own",
    "mobilebert": "has several feed-forward networks of another width in each layer",
}
"""What is known to stand in the way of finding the layers, by model type."""


class IA3(TunerBlock):
    """Learn a vector for keys, one for values and one for inner activations in each layer; all else is frozen."""

    name: Literal["ia3"] = "ia3"
    adapts: ClassVar[bool] = True
    target_modules: tuple[str, ...] = Field(())
    """Ends of the names of the layers that are scaled, feed-forward ones among them. Default: found in the
    architecture."""
    feedforward_modules: tuple[str, ...] = Field(())
    """Those of `target_modules` whose input is scaled, not their output: the second layers of feed-forward networks."""
    exclude_modules: tuple[str, ...] = ()
    """Of these layers, those to leave out: the ends of their names, or of the names of modules that hold them."""
    modules_to_save: tuple[str, ...] = ()
    """Further modules that are trained whole and saved with the adapter."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        stray = [each for each in self.feedforward_modules if each not in self.target_modules]
        if stray:
            sentence = f"names {', '.join(stray)}, which target_modules does not; name them in both"
            raise ConfigIssues([(("feedforward_modules",), sentence)])
        return self

    def misfit(self, words: Config, head: str) -> str | None:
        why = None if self.target_modules else UNFIT.get(str(words.get("model_type")))
        return why and (
            f"scales keys, values and inner activations, but '{words['model_type']}' {why}; name its layers "
            "in target_modules, or use lora"
        )

    def apply(self, model: PreTrainedModel) -> PreTrainedModel | PeftModel:
        """A PEFT model around `model`. Raises IncompatibleError where its keys, values or feed-forwards are not
        found.
        """
        from peft import IA3Config, get_peft_model

        whole = trained_whole(model, self.modules_to_save, self.name)
        if self.target_modules:
            targets = chosen(model, self.name, self.target_modules, whole, self.exclude_modules)
            inner = [name for name in targets if any(ends(name, each) for each in self.feedforward_modules)]
        else:
            inner, targets = self._found(model, whole)
        config = IA3Config(
            target_modules=list(targets),
            feedforward_modules=inner,
            modules_to_save=whole or None,
            fan_in_fan_out=all(is_transposed(each) for each in targets.values()),
        )
        return get_peft_model(model, config)

    def _found(self, model: PreTrainedModel, whole: list[str]) -> tuple[list[str], dict[str, Module]]:
        """(the layers that end feed-forward networks, they and the projections to keys and values), by full name."""
        body = body_layers(model, whole)
        projections, inner = key_value_layers(body), feed_forward_ends(model, body)
        missing = [
            what
            for what, names in (("projections to keys and values", projections), ("feed-forward networks", inner))
            if not names
        ]
        if missing:
            raise IncompatibleError(
                f"{self.name} finds no {' and no '.join(missing)} in {type(model).__name__}; name the layers in "
                "target_modules, and those whose input is scaled in feedforward_modules too, or use another "
                "tuner, such as lora"
            )
        layers = chosen(model, self.name, (*projections, *inner), whole, self.exclude_modules)
        return [name for name in inner if name in layers], layers
