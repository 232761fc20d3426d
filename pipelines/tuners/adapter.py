"""Bottleneck adapters: freeze the model, learn narrow networks behind its sub-layers.

Houlsby et al. 2019, "Parameter-Efficient Transfer Learning for NLP", arxiv.org/abs/1902.00751; Pfeiffer et al. 2020,
"AdapterHub", arxiv.org/abs/2007.07779, for one adapter a layer; He et al. 2022, "Towards a Unified View of
Parameter-Efficient Transfer Learning", arxiv.org/abs/2110.04366, for the scaled parallel one. `bottleneck` computes
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from pipelines.architectures.configuration_rules import Config
from pipelines.core.config import ConfigIssues
from pipelines.core.errors import IncompatibleError
from pipelines.tuners.target_modules import trained_whole
from pipelines.tuners.tuner import TunerBlock, layer_beyond

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

Kind = Literal["houlsby", "pfeiffer", "parallel"]
NonLinearity = Literal[
    "relu",
    "gelu",
    "gelu_new",
    "gelu_pytorch_tanh",
    "silu",
    "swish",
    "tanh",
    "sigmoid",
    "leaky_relu",
    "mish",
    "hardswish",
    "linear",
]

NO_ATTENTION = (
    "fnet",
    "xlnet",
    "mamba",
    "mamba2",
    "falcon_mamba",
    "rwkv",
    "xlstm",
    "ibert",
    "squeezebert",
    "cpmant",
    "reformer",
)
"""Model types whose attention, where they have one, does not end in a linear layer of its own in every layer."""
NO_FEED_FORWARD = (
    "mamba",
    "mamba2",
    "falcon_mamba",
    "rwkv",
    "xlstm",
    "ibert",
    "squeezebert",
    "cpmant",
    "reformer",
    "perceiver",
    "mixtral",
    "olmoe",
    "flex_olmo",
    "gpt_oss",
    "granitemoe",
    "jetmoe",
    "phimoe",
)
"""Model types whose feed-forward network is none, is no pair of linear layers, or is one of several experts."""


class Adapter(TunerBlock):
    """Learn bottleneck adapters behind the sub-layers; everything else stays frozen."""

    name: Literal["adapter"] = "adapter"
    adapts: ClassVar[bool] = True
    merges: ClassVar[bool] = False
    merges_into_code: ClassVar[bool] = True
    fuses: ClassVar[bool] = True
    kind: Kind = "houlsby"
    """`houlsby`: behind every attention (to other texts too) and every feed-forward network; `pfeiffer`: behind the
    feed-forward network only; `parallel`: beside the feed-forward network, reading what it reads."""
    reduction_factor: float = Field(16, gt=0)
    """The adapter is narrower than the model by this factor."""
    bottleneck_size: int | None = Field(None, ge=1)
    """Width inside the adapter, instead of `reduction_factor`."""
    non_linearity: NonLinearity | None = None
    """What bends the narrow states. Default: gelu for houlsby, relu for the others, as their authors' code has it."""
    scaling: float | None = Field(None, gt=0)
    """What the adapter's output is multiplied by. Default: 4 for parallel (section 4.6 of He et al.), 1 for the
    others."""
    adapter_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the narrow states."""
    init: Literal["identity", "near-identity"] = "identity"
    """`identity`: the wide side begins at zero, so that the first output is exactly the model's; `near-identity`: both
    sides are drawn from a normal distribution with `init_std`, as in section 3.6 of Houlsby et al."""
    init_std: float = Field(0.01, gt=0, le=1)
    """For `near-identity`; above 0.01 the paper sees worse results."""
    train_layer_norm: bool = False
    """Whether the normalisations of the layers with adapters learn too; they are saved with the adapter."""
    layers: tuple[int, ...] | None = Field(None, min_length=1)
    """Numbers of the layers that get adapters, the first is 0; in an encoder-decoder of both stacks. Default: all."""
    modules_to_save: tuple[str, ...] = ()
    """Further modules that are trained whole and saved with the adapter."""

    @model_validator(mode="after")
    def _fits_together(self) -> Adapter:
        issues = []
        if self.bottleneck_size is not None and "reduction_factor" in self.model_fields_set:
            issues.append((("bottleneck_size",), "and reduction_factor say the same thing twice; leave one out"))
        if "init_std" in self.model_fields_set and self.init == "identity":
            issues.append((("init_std",), "is for init: near-identity; init: identity begins at zero"))
        if self.layers is not None and (min(self.layers) < 0 or len(set(self.layers)) < len(self.layers)):
            issues.append((("layers",), f"is {list(self.layers)}, must be different numbers from 0 on"))
        if issues:
            raise ConfigIssues(issues)
        return self

    @property
    def changes_base(self) -> tuple[str, ...]:
        """Norms that learn, and modules that are trained whole."""
        return tuple(key for key in ("train_layer_norm", "modules_to_save") if getattr(self, key))

    def misfit(self, words: Config, head: str) -> str | None:
        """Model types without a place for the adapter, and layers that are not there."""
        kind = words.get("model_type")
        if kind in NO_FEED_FORWARD:
            return (
                f"finds no place in {kind}: its feed-forward network is not two linear layers that every token "
                "passes; use lora"
            )
        if self.kind == "houlsby" and kind in NO_ATTENTION:
            return (
                f"finds no place behind the attention of {kind}, which does not end in a linear layer; use kind: "
                "pfeiffer"
            )
        beyond = None if self.layers is None else layer_beyond(words, self.layers)
        return None if beyond is None else f"is to stand in layer {beyond}"

    def apply(self, model: PreTrainedModel) -> PreTrainedModel | PeftModel:
        """A PEFT model around `model`. Raises IncompatibleError when a layer has no place for the adapter."""
        from peft import get_peft_model

        from pipelines.tuners.bottleneck import BottleneckConfig, norms_of, places_for, register

        register()
        try:
            places = places_for(model, self.kind, self.layers)
        except ValueError as error:
            raise IncompatibleError(f"the tuner adapter {error}") from None
        norms = norms_of(model, places) if self.train_layer_norm else []
        config = BottleneckConfig(
            kind=self.kind,
            reduction_factor=self.reduction_factor,
            bottleneck_size=self.bottleneck_size,
            non_linearity=self.non_linearity or ("gelu" if self.kind == "houlsby" else "relu"),
            scaling=self.scaling or (4.0 if self.kind == "parallel" else 1.0),
            adapter_dropout=self.adapter_dropout,
            init=self.init,
            init_std=self.init_std,
            layers=None if self.layers is None else list(self.layers),
            target_modules=[place.exit for place in places],
            modules_to_save=[*trained_whole(model, self.modules_to_save, self.name), *norms] or None,
        )
        return get_peft_model(model, config)
