"""Adapter fusion: a learned mix of what the frozen adapters of several tasks would change.

Pfeiffer et al. 2021, "AdapterFusion: Non-Destructive Task Composition for Transfer Learning", arxiv.org/abs/2005.00247,
section 3.2: at each place the output of the sub-layer asks, the changes of the adapters answer, and their mix is added.
`bottleneck` computes it. The adapters are copied into the result, which is one PEFT adapter like any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from pipelines.core.config import ConfigIssues
from pipelines.core.errors import IncompatibleError, ModelError
from pipelines.tuners.target_modules import trained_whole
from pipelines.tuners.tuner import TunerBlock

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import Tensor
    from transformers import PreTrainedModel

KEYS = ("kind", "reduction_factor", "bottleneck_size", "non_linearity", "scaling", "adapter_dropout")
"""What an adapter's config says about how it computes."""


class Fusion(TunerBlock):
    """Learn to mix the adapters of earlier stages; the adapters and the model stay frozen."""

    name: Literal["fusion"] = "fusion"
    recipe_examples: ClassVar[tuple[str, ...]] = ("{name: fusion, adapters: [first, second]}",)
    adapts: ClassVar[bool] = True
    begins_at_base: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    merges_into_code: ClassVar[bool] = True
    adapters: tuple[str, ...] = Field(min_length=2)
    """Ids of earlier stages with the tuner `adapter`, trained on the model that this stage reads."""
    value_regularization: float = Field(0.01, ge=0)
    """Weight of the squared distance between each value matrix and the identity, added to the loss; 0.01 in the
    authors' code."""
    modules_to_save: tuple[str, ...] = ()
    """Further modules that are trained whole and saved with the adapter."""

    _folders: dict[str, Path] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.adapters)) < len(self.adapters):
            raise ConfigIssues([(("adapters",), f"is {list(self.adapters)}, which names a stage twice")])
        return self

    @property
    def stages(self) -> tuple[str, ...]:
        return self.adapters

    def given(self, folders: Mapping[str, Path]) -> Fusion:
        tuner = self.model_copy()
        tuner._folders = dict(folders)
        return tuner

    def apply(self, model: PreTrainedModel) -> PreTrainedModel | PeftModel:
        """A PEFT model around `model`. Raises ModelError when the adapters do not fit it."""
        from peft import get_peft_model
        from safetensors.torch import load_file

        from pipelines.tuners.bottleneck import BottleneckLayer, FusionConfig, places, register

        register()
        if missing := [name for name in self.adapters if name not in self._folders]:
            raise ModelError(f"the weights of a fusion are known once its adapters are trained: {', '.join(missing)}")
        weights, members = [], []
        here = {place.exit for place in places(model)}
        for name in self.adapters:
            folder = self._folders[name]
            weights.append(load_file(folder / "adapter_model.safetensors"))
            members.append(self._member(name, folder, sorted(_places_of(weights[-1]))))
            if lost := [place for place in members[-1]["places"] if place not in here]:
                raise IncompatibleError(
                    f"the adapter of stage '{name}' stands at {lost[0]}, which {type(model).__name__} does not have"
                )
        targets = [place.exit for place in places(model) if any(place.exit in member["places"] for member in members)]
        whole = trained_whole(model, self.modules_to_save, self.name)
        tuned = get_peft_model(
            model, FusionConfig(members=members, target_modules=targets, modules_to_save=whole or None)
        )
        for name, layer in tuned.get_base_model().named_modules():
            if isinstance(layer, BottleneckLayer):
                fused = layer.bottleneck_adapters[tuned.active_adapter]
                learnt = [_weights_at(each, name) for each in weights if name in _places_of(each)]
                for member, values in zip(fused.members, learnt, strict=True):
                    member.load_state_dict(values)
        return tuned

    def _member(self, name: str, folder: Path, places: list[str]) -> dict[str, Any]:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        return {"name": name, "places": places, **{key: config[key] for key in KEYS}}

    def penalty(self, model: PreTrainedModel) -> Tensor | None:
        """`value_regularization` times the squared distance of all value matrices from the identity."""
        from pipelines.tuners.bottleneck import FusedBottlenecks

        if not self.value_regularization:
            return None
        return self.value_regularization * sum(
            each.distance() for each in model.modules() if isinstance(each, FusedBottlenecks)
        )


MARK = ".bottleneck_adapters."


def _places_of(weights: Mapping[str, Tensor]) -> set[str]:
    """Full names of the layers behind which a saved adapter stands."""
    return {key.partition(MARK)[0].removeprefix("base_model.model.") for key in weights if MARK in key}


def _weights_at(weights: Mapping[str, Tensor], place: str) -> dict[str, Tensor]:
    start = f"base_model.model.{place}{MARK}"
    return {key.removeprefix(start): value for key, value in weights.items() if key.startswith(start)}
