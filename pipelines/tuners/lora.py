"""LoRA: freeze the model, learn a low-rank update per matrix. Hu et al. 2021, arxiv.org/abs/2106.09685.

Modules that the checkpoint did not bring (a fresh classification head, BERT's pooler) cannot be frozen at their random
values: they are trained whole and saved with the adapter, so that adapter and base together are the whole model.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from pipelines.blocks import Mistakes, show
from pipelines.errors import ModelError
from pipelines.tuners.tuner import TunerBlock


def _targets(value: Any) -> Any:
    if value == "all-linear" or (isinstance(value, tuple) and value and all(isinstance(each, str) for each in value)):
        return value
    raise Mistakes([((), f"is {show(value)}, must be all-linear or a list of module names, such as [query, value]")])


class LoRA(TunerBlock):
    """Learn a low-rank update beside each chosen linear layer; everything else stays frozen."""

    name: Literal["lora"] = "lora"
    adapts: ClassVar[bool] = True
    r: int = Field(8, ge=1)
    """Rank of each update. Section 7.2 of the paper reports that small ranks already suffice."""
    lora_alpha: float = Field(16.0, gt=0)
    """Updates are scaled by lora_alpha / r, so changing the rank keeps the learning rate valid."""
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the input of each update."""
    target_modules: Annotated[tuple[str, ...] | Literal["all-linear"], BeforeValidator(_targets)] = "all-linear"
    """Linear layers that receive an update: all of them but the head, or those whose names end so."""
    modules_to_save: tuple[str, ...] = ()
    """Further modules that are trained whole and saved with the adapter."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """Which biases learn too."""
    use_rslora: bool = False
    """Scale by lora_alpha / sqrt(r) instead. Kalajdzievski 2023, arxiv.org/abs/2312.03732."""
    use_dora: bool = False
    """Learn magnitude and direction apart. Liu et al. 2024, arxiv.org/abs/2402.09353."""

    def apply(self, model: Any) -> Any:
        """A PEFT model around `model`. Raises ModelError when no layer matches `target_modules`."""
        from peft import LoraConfig, get_peft_model

        fresh = list(getattr(model, "finery_new_modules", ()))
        modules = [name for name, _ in model.named_modules() if name]
        absent = [each for each in self.modules_to_save if not any(_ends(name, each) for name in modules)]
        if absent:
            known = sorted({name.rpartition(".")[2] for name in modules if not name.rpartition(".")[2].isdigit()})
            raise ModelError(f"lora.modules_to_save {absent} match no module of the model; it has {', '.join(known)}")
        # Full names: PEFT compares mere ends of names, and "embeddings" would be "word_embeddings" too.
        asked = [name for name in modules if any(_ends(name, each) for each in self.modules_to_save)]
        whole = [*dict.fromkeys([*fresh, *asked])]
        whole = [name for name in whole if not any(name.startswith(f"{other}.") for other in whole)]
        config = LoraConfig(
            r=self.r,
            lora_alpha=self.lora_alpha,
            lora_dropout=self.lora_dropout,
            target_modules=linear_layers(model, self.target_modules, whole),
            modules_to_save=whole or None,
            bias=self.bias,
            use_rslora=self.use_rslora,
            use_dora=self.use_dora,
        )
        return get_peft_model(model, config)


def linear_layers(model: Any, wanted: tuple[str, ...] | str, left_out: list[str]) -> list[str]:
    """Full names of the linear layers that receive an update."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    body = getattr(model, "base_model_prefix", "")
    in_body = {name for name, _ in model.named_modules() if not body or name.startswith(f"{body}.")}
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    head_names = [name for name, module in model.named_modules() if module is head]
    free = [
        name for name in linear
        if name not in head_names
        and not any(_ends(name, each) or name.startswith(f"{each}.") or f".{each}." in name for each in left_out)
    ]  # fmt: skip
    if isinstance(wanted, str):
        layers = [name for name in free if name in in_body or not in_body]
        unmatched = [] if layers else [wanted]
    else:
        layers = [name for name in free if any(_ends(name, each) for each in wanted)]
        unmatched = [each for each in wanted if not any(_ends(name, each) for name in free)]
    if unmatched:
        known = sorted({name.rpartition(".")[2] for name in free})
        raise ModelError(
            f"lora.target_modules {', '.join(unmatched)}: no linear layer of the model is named so; "
            f"those that can have an update are {', '.join(known)}"
        )
    return layers


def _ends(name: str, ending: str) -> bool:
    """Whether a module's full name ends with these whole words."""
    return name == ending or name.endswith(f".{ending}")
