"""LoRA: freeze the model, learn a low-rank update per matrix. Hu et al. 2021, arxiv.org/abs/2106.09685.

Modules that the checkpoint did not bring (a fresh classification head, BERT's pooler) cannot be frozen at their random
values: they are trained whole and saved with the adapter, so that adapter and base together are the whole model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from pipelines.blocks import Found, Mistakes, show
from pipelines.errors import Misfit
from pipelines.tuners.tuner import TunerBlock

STARTS = ("gaussian", "orthogonal", "pissa", "olora")
"""Names of starts beside the paper's own."""


def _targets(value: Any) -> Any:
    if value == "all-linear" or (isinstance(value, tuple) and value and all(isinstance(each, str) for each in value)):
        return value
    raise Mistakes([((), f"is {show(value)}, must be all-linear or a list of module names, such as [query, value]")])


def _start(value: Any) -> Any:
    if value is True or value in STARTS or (isinstance(value, str) and re.fullmatch(r"pissa_niter_[1-9]\d*", value)):
        return value
    raise Mistakes([((), f"is {show(value)}, must be true, or one of {', '.join(STARTS)}, or pissa_niter_N such as pissa_niter_16")])


def _indices(value: Any) -> Any:
    numbers = (value,) if isinstance(value, int) else value
    whole = isinstance(numbers, tuple) and numbers and all(type(each) is int and each >= 0 for each in numbers)
    if value is None or whole:
        return None if value is None else tuple(sorted(set(numbers)))
    raise Mistakes([((), f"is {show(value)}, must be the position of a layer, 0 the first, or a list of positions")])


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
    exclude_modules: tuple[str, ...] = ()
    """Of these layers, those to leave out: the ends of their names, or of the names of modules that hold them."""
    layers_to_transform: Annotated[
        tuple[int, ...] | None, BeforeValidator(_indices),
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "array", "items": {"type": "integer", "minimum": 0}}, {"type": "null"}]}),
    ] = None  # fmt: skip
    """Only layers of the blocks at these positions, 0 the first; in an encoder-decoder, of both stacks."""
    layers_pattern: tuple[str, ...] = ()
    """What the stacks are called whose blocks `layers_to_transform` counts. Default: any."""
    modules_to_save: tuple[str, ...] = ()
    """Further modules that are trained whole and saved with the adapter."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """Which biases learn too."""
    rank_pattern: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Ranks of single layers, by the end of a name (a regular expression): `{query: 16, layer.0.output.dense: 4}`."""
    alpha_pattern: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """The same for `lora_alpha`. A layer with its own rank and no alpha of its own keeps `lora_alpha`."""
    use_rslora: bool = False
    """Scale by lora_alpha / sqrt(r) instead. Kalajdzievski 2023, arxiv.org/abs/2312.03732."""
    use_dora: bool = False
    """Learn magnitude and direction apart. Liu et al. 2024, arxiv.org/abs/2402.09353."""
    init_lora_weights: Annotated[
        bool | str, BeforeValidator(_start),
        WithJsonSchema({"anyOf": [{"const": True}, {"enum": list(STARTS)}, {"type": "string", "pattern": r"^pissa_niter_[1-9]\d*$"}]}),
    ] = True  # fmt: skip
    """Where the updates begin: `true` (A random, B zero), `gaussian` (A normal), `orthogonal` (both random, their product zero);
    or taking over the weight's main directions: `pissa` (singular values; `pissa_niter_16` finds them faster), `olora` (QR)."""
    lora_plus_ratio: float | None = Field(None, gt=0)
    """LoRA+: how many times the learning rate of A that of B is, 16 in the paper. Hayou et al. 2024, arxiv.org/abs/2402.12354."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        found: list[Found] = []
        for key in ("rank_pattern", "alpha_pattern"):
            for pattern in getattr(self, key):
                try:
                    re.compile(pattern)
                except re.error as error:
                    found.append(((key, pattern), f"is no regular expression: {error}"))
        if self.init_lora_weights == "orthogonal":
            odd = [(("r",), self.r), *((("rank_pattern", name), rank) for name, rank in self.rank_pattern.items())]
            found += [(place, f"is {rank}, must be even for init_lora_weights: orthogonal") for place, rank in odd if rank % 2]
        if self.layers_pattern and self.layers_to_transform is None:
            found.append((("layers_pattern",), "says where layers_to_transform counts, which is not given"))
        if found:
            raise Mistakes(found)
        return self

    @property
    def leaves_base(self) -> bool:
        """Not where biases of the base learn, or where the update takes over a part of its weights."""
        taken = isinstance(self.init_lora_weights, str) and self.init_lora_weights.startswith(("pissa", "olora"))
        return self.bias == "none" and not taken

    def apply(self, model: Any) -> Any:
        """A PEFT model around `model`. Raises Misfit when no layer matches `target_modules`, or a key would have no effect."""
        from peft import LoraConfig, get_peft_model

        from pipelines.tuners import layers, lora_start

        whole = layers.trained_whole(model, self.modules_to_save, self.name)
        targets = layers.chosen(
            model, self.name, self.target_modules, whole, self.exclude_modules, self.layers_to_transform, self.layers_pattern
        )
        self._refuse_idle_patterns(list(targets))
        config = LoraConfig(
            r=self.r,
            lora_alpha=self.lora_alpha,
            lora_dropout=self.lora_dropout,
            target_modules=list(targets),
            modules_to_save=whole or None,
            bias=self.bias,
            rank_pattern=dict(self.rank_pattern),
            alpha_pattern=dict(self.alpha_pattern),
            fan_in_fan_out=all(layers.is_transposed(each) for each in targets.values()),
            use_rslora=self.use_rslora,
            use_dora=self.use_dora,
            init_lora_weights=True if lora_start.takes_over(self.init_lora_weights) else self.init_lora_weights,
        )
        tuned = get_peft_model(model, config)
        if lora_start.takes_over(self.init_lora_weights):
            tuned.finery_start = lora_start.start(tuned, str(self.init_lora_weights))
        return tuned

    def _refuse_idle_patterns(self, targets: list[str]) -> None:
        for key in ("rank_pattern", "alpha_pattern"):
            idle = [each for each in getattr(self, key) if not any(re.match(rf"(.*\.)?({each})$", name) for name in targets)]
            if idle:
                known = ", ".join(sorted({name.rpartition(".")[2] for name in targets}))
                raise Misfit(f"{self.name}.{key} {', '.join(idle)}: no target layer is named so; they are {known}")

    def rates(self, model: Any) -> Mapping[str, float]:
        """LoRA+ (algorithm 1): the matrices B learn `lora_plus_ratio` times as fast."""
        if self.lora_plus_ratio is None:
            return {}
        return {name: self.lora_plus_ratio for name, _ in model.named_parameters() if ".lora_B." in name}

    def save(self, model: Any, folder: Path) -> None:
        """Write a PEFT adapter for the base as it came: an update that took over a part of it is written as plain LoRA."""
        from pipelines.tuners import lora_start

        model.save_pretrained(str(folder))
        begun = getattr(model, "finery_start", None)
        if begun is not None:
            lora_start.convert(Path(folder), begun)
