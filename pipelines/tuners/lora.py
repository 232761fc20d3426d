"""LoRA: freeze the model, learn a low-rank update per matrix. Hu et al. 2021, arxiv.org/abs/2106.09685.

Modules that the checkpoint did not bring (a fresh classification head, BERT's pooler) cannot be frozen at their random
values: they are trained whole and saved with the adapter, so that adapter and base together are the whole model.

An update may begin by taking over a part of the frozen weight. PiSSA (Meng et al. 2024, section 3,
arxiv.org/abs/2404.02948) starts it at the r largest singular values of the weight, OLoRA (Büyükakyüz 2024,
arxiv.org/abs/2406.01775) at the first r columns of its QR decomposition. What is taken over is subtracted, so that base
and update together begin as the weight was: W = R + s B0 A0, s being LoRA's scale. The base is then another one than
the checkpoint's. What is learnt is written as plain LoRA of twice the rank on the checkpoint's own weight: s (B A - B0
A0) = s [B, -B0] [A; A0] (PiSSA, section 4 and appendix C).

Both starts are computed here and not by PEFT 0.21, whose OLoRA takes GPT-2's transposed matrices for upright ones, and
whose conversion refuses `use_rslora` beside a pattern. A checkpoint of the middle of a training holds A and B alone:
the same base is found again by starting anew, for B0 A0 is unique where A0 and B0 are not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from pipelines.architectures.configuration_rules import Config
from pipelines.core.config import ConfigIssue, ConfigIssues, show
from pipelines.core.errors import IncompatibleError
from pipelines.tuners.target_modules import chosen, is_transposed, sizes, trained_whole
from pipelines.tuners.tuner import TunerBlock, layer_beyond

if TYPE_CHECKING:
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer
    from torch import Tensor
    from torch.nn import Module
    from transformers import PreTrainedModel

STARTS = ("gaussian", "orthogonal", "pissa", "olora")
"""Names of starts beside the paper's own."""
TAKING_OVER = ("pissa", "olora")
"""How the names begin of the starts that take over a part of the weight."""
OVERSAMPLED = 8
"""Directions that the fast search for singular values looks along beside those it is asked for."""
Start = Mapping[str, tuple["Tensor", "Tensor"]]
"""(A0 (r, in), B0 (out, r)) of each layer, by its full name in the base."""


def _targets(value: object) -> object:
    if value == "all-linear" or (isinstance(value, tuple) and value and all(isinstance(each, str) for each in value)):
        return value
    sentence = f"is {show(value)}, must be all-linear or a list of module names, such as [query, value]"
    raise ConfigIssues([((), sentence)])


def _init_lora_weights(value: object) -> object:
    if value is True or value in STARTS or (isinstance(value, str) and re.fullmatch(r"pissa_niter_[1-9]\d*", value)):
        return value
    starts = f"{', '.join(STARTS)}, or pissa_niter_N such as pissa_niter_16"
    raise ConfigIssues([((), f"is {show(value)}, must be true, or one of {starts}")])


def _indices(value: object) -> object:
    if value is None:
        return None
    numbers = (value,) if isinstance(value, int) else value
    if isinstance(numbers, tuple) and numbers and all(type(each) is int and each >= 0 for each in numbers):
        return tuple(sorted(set(numbers)))
    sentence = f"is {show(value)}, must be the position of a layer, 0 the first, or a list of positions"
    raise ConfigIssues([((), sentence)])


class LoRA(TunerBlock):
    """Learn a low-rank update beside each chosen linear layer; everything else stays frozen."""

    name: Literal["lora"] = "lora"
    adapts: ClassVar[bool] = True
    known_elsewhere: ClassVar[bool] = True
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
        tuple[int, ...] | None,
        BeforeValidator(_indices),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "integer", "minimum": 0},
                    {"type": "array", "items": {"type": "integer", "minimum": 0}},
                    {"type": "null"},
                ]
            }
        ),
    ] = None
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
        bool | str,
        BeforeValidator(_init_lora_weights),
        WithJsonSchema(
            {
                "anyOf": [
                    {"const": True},
                    {"enum": list(STARTS)},
                    {"type": "string", "pattern": r"^pissa_niter_[1-9]\d*$"},
                ]
            }
        ),
    ] = True
    """Where the updates begin: `true` (A random, B zero), `gaussian` (A normal), `orthogonal` (both random, their
    product zero); or taking over the weight's main directions: `pissa` (singular values; `pissa_niter_16` finds them
    faster), `olora` (QR)."""
    lora_plus_ratio: float | None = Field(None, gt=0)
    """LoRA+: how many times the learning rate of A that of B is, 16 in the paper. Hayou et al. 2024,
    arxiv.org/abs/2402.12354."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        issues: list[ConfigIssue] = []
        for key in ("rank_pattern", "alpha_pattern"):
            for pattern in getattr(self, key):
                try:
                    re.compile(pattern)
                except re.error as error:
                    issues.append(((key, pattern), f"is no regular expression: {error}"))
        if self.init_lora_weights == "orthogonal":
            odd = [(("r",), self.r), *((("rank_pattern", name), rank) for name, rank in self.rank_pattern.items())]
            issues += [
                (place, f"is {rank}, must be even for init_lora_weights: orthogonal") for place, rank in odd if rank % 2
            ]
        if self.layers_pattern and self.layers_to_transform is None:
            issues.append((("layers_pattern",), "says where layers_to_transform counts, which is not given"))
        if issues:
            raise ConfigIssues(issues)
        return self

    def misfit(self, words: Config, head: str) -> str | None:
        """Layers that are not there."""
        if self.layers_to_transform is None:
            return None
        beyond = layer_beyond(words, self.layers_to_transform, "num_decoder_layers", "decoder_layers")
        return None if beyond is None else f"has layers_to_transform {beyond}"

    @property
    def keeps_base(self) -> bool:
        """Not where biases of the base learn, or where the update takes over a part of its weights."""
        return self.bias == "none" and not takes_over(self.init_lora_weights)

    def counted_by_formula(self) -> bool:
        """Unless single layers are left out, or have a rank of their own."""
        return not (self.exclude_modules or self.layers_to_transform or self.rank_pattern)

    def apply(self, model: PreTrainedModel) -> PreTrainedModel | PeftModel:
        """A PEFT model around `model`. Raises IncompatibleError for a key that matches no layer."""
        from peft import LoraConfig, get_peft_model

        whole = trained_whole(model, self.modules_to_save, self.name)
        targets = chosen(
            model,
            self.name,
            self.target_modules,
            whole,
            self.exclude_modules,
            self.layers_to_transform,
            self.layers_pattern,
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
            fan_in_fan_out=all(is_transposed(each) for each in targets.values()),
            use_rslora=self.use_rslora,
            use_dora=self.use_dora,
            init_lora_weights=True if takes_over(self.init_lora_weights) else self.init_lora_weights,
        )
        tuned = get_peft_model(model, config)
        if takes_over(self.init_lora_weights):
            tuned.finery_start = take_over(tuned, str(self.init_lora_weights))
        return tuned

    def _refuse_idle_patterns(self, targets: list[str]) -> None:
        for key in ("rank_pattern", "alpha_pattern"):
            idle = [
                each for each in getattr(self, key) if not any(re.match(rf"(.*\.)?({each})$", name) for name in targets)
            ]
            if idle:
                layer_names = ", ".join(sorted({name.rpartition(".")[2] for name in targets}))
                raise IncompatibleError(
                    f"{self.name}.{key} {', '.join(idle)}: no target layer is named so; they are {layer_names}"
                )

    def rates(self, model: PreTrainedModel) -> Mapping[str, float]:
        """LoRA+ (algorithm 1): the matrices B learn `lora_plus_ratio` times as fast."""
        if self.lora_plus_ratio is None:
            return {}
        return {name: self.lora_plus_ratio for name, _ in model.named_parameters() if ".lora_B." in name}

    def save(self, model: PreTrainedModel, folder: Path) -> None:
        """Write a PEFT adapter for the base as it came; an update that took over a part of it becomes plain LoRA."""
        model.save_pretrained(str(folder))
        begun = getattr(model, "finery_start", None)
        if begun is not None:
            convert(Path(folder), begun)


def takes_over(init_lora_weights: bool | str) -> bool:
    """Whether this start changes the base."""
    return isinstance(init_lora_weights, str) and init_lora_weights.startswith(TAKING_OVER)


def take_over(model: PeftModel, init_lora_weights: str) -> Start:
    """Let the updates take over a part of their base. Raises IncompatibleError where a rank exceeds its matrix."""
    begun: dict[str, tuple[Tensor, Tensor]] = {}
    adapter = model.active_adapter
    for name, module in model.base_model.model.named_modules():
        if adapter not in getattr(module, "lora_A", {}):
            continue
        base, rank, scale = module.get_base_layer(), module.r[adapter], module.scaling[adapter]
        if rank > min(sizes(base)):
            raise IncompatibleError(
                f"lora: the rank of '{name}' is {rank}, but its matrix of {sizes(base)[1]} x {sizes(base)[0]} "
                f"has no more than {min(sizes(base))} directions for {init_lora_weights} to take over; lower r, or "
                "give the layer its own in rank_pattern"
            )
        begun[name] = _take_over_layer(module, base, adapter, rank, scale, init_lora_weights)
    return begun


def _take_over_layer(
    module: LoraLayer, base: Module, adapter: str, rank: int, scale: float, way: str
) -> tuple[Tensor, Tensor]:
    """Set A, B and the rest of one layer's weight; returns (A0, B0)."""
    import torch

    a, b = module.lora_A[adapter].weight, module.lora_B[adapter].weight
    if base.weight.is_meta:  # a model that is only counted
        return a, b
    with torch.no_grad():
        stored = base.weight.data
        weight = (stored.T if is_transposed(base) else stored).float()  # (out, in)
        before, after = _olora(weight, rank) if way == "olora" else _pissa(weight, rank, scale, way)
        a.copy_(before)
        b.copy_(after)
        rest = weight - scale * (after @ before)
        base.weight.data = (rest.T if is_transposed(base) else rest).to(stored.dtype).contiguous()
    return a.detach().clone(), b.detach().clone()


def _pissa(weight: Tensor, rank: int, scale: float, way: str) -> tuple[Tensor, Tensor]:
    """A0 = sqrt(S) V^T, B0 = U sqrt(S), of the r largest singular values divided by the scale."""
    import torch

    if way == "pissa":
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
    else:  # pissa_niter_N: Halko et al. 2009, sections 4.5 and 5.1, arxiv.org/abs/0909.4061; always the same draw
        with torch.random.fork_rng(devices=[weight.device] if weight.is_cuda else []):
            torch.manual_seed(0)
            left, values, turned = torch.svd_lowrank(
                weight, min(rank + OVERSAMPLED, *weight.shape), niter=int(way.rpartition("_")[2])
            )
        right = turned.T
    root = (values[:rank] / scale).sqrt()
    return root[:, None] * right[:rank], left[:, :rank] * root


def _olora(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """A0 = R[:r], B0 = Q[:, :r]."""
    import torch

    orthogonal, triangular = torch.linalg.qr(weight)
    return triangular[:rank], orthogonal[:, :rank]


def convert(folder: Path, begun: Start) -> None:
    """Rewrite the adapter in `folder` as plain LoRA of twice the rank on the base as it was before `take_over`."""
    import torch
    from safetensors.torch import load_file, save_file

    weights_path, config_path = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    weights = load_file(weights_path)
    for name, (a, b) in begun.items():
        for part, joined in (("lora_A", (0, a)), ("lora_B", (1, -b))):
            axis, before = joined
            key = f"base_model.model.{name}.{part}.weight"
            weights[key] = torch.cat([weights[key], before.to(weights[key])], dim=axis).contiguous()
    save_file(weights, weights_path, metadata={"format": "pt"})
    config = json.loads(config_path.read_text())
    # The scale stays: it is alpha / r, or alpha / sqrt(r) under use_rslora.
    wider = 2**0.5 if config["use_rslora"] else 2
    config |= {
        "r": 2 * config["r"],
        "lora_alpha": wider * config["lora_alpha"],
        "rank_pattern": {name: 2 * rank for name, rank in (config["rank_pattern"] or {}).items()},
        "alpha_pattern": {name: wider * alpha for name, alpha in (config["alpha_pattern"] or {}).items()},
    }
    config_path.write_text(json.dumps(config, indent=2, sort_keys=True))
