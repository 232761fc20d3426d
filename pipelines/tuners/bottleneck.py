"""Bottleneck adapters and their fusion as PEFT methods: `peft_type` FINERY_BOTTLENECK and FINERY_FUSION.

Importing this module teaches them to PEFT; from then on `get_peft_model`, `save_pretrained`,
`PeftModel.from_pretrained`, `load_adapter`, `set_adapter`, `disable_adapter`, `delete_adapter` and `unload` work as for
every other method. PEFT runs no code that comes with an adapter, so saving one copies this file beside it, as
`finery_bottleneck.py`: whoever imports that copy first can load the adapter. Therefore it imports torch, transformers,
peft and the standard library only.

A sequential adapter changes a sub-layer's output y, just before dropout, residual and norm, to y + s * up(f(down(y))).
Houlsby et al. 2019, arxiv.org/abs/1902.00751, section 2.1, put one behind every attention and every feed-forward
network; Pfeiffer et al. 2021, arxiv.org/abs/2005.00247, appendix A, one behind the feed-forward network. The parallel
adapter reads the feed-forward network's input x instead, y + s * up(f(down(x))): He et al. 2022,
arxiv.org/abs/2110.04366, section 3.3.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig
from peft import mapping as peft_mapping
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

BOTTLENECK, FUSION = "FINERY_BOTTLENECK", "FINERY_FUSION"
FILE = "finery_bottleneck.py"
"""What this module is called beside a saved adapter."""
ATTENTION, FEED_FORWARD = "attention", "feed-forward network"
READS = {"houlsby": (ATTENTION, FEED_FORWARD), "pfeiffer": (FEED_FORWARD,), "parallel": (FEED_FORWARD,)}
"""The sub-layers that each kind of adapter needs."""

QUERIES = (
    "query",
    "q_proj",
    "q_lin",
    "q",
    "c_attn",
    "q_attn",
    "Wqkv",
    "Wq",
    "query_key_value",
    "qkv_proj",
    "query_proj",
    "q_head",
    "q_b_proj",
)
"""Names of the linear layer that makes queries: its module is an attention."""
OUTPUTS = ("output", "out_proj", "o_proj", "o", "c_proj", "dense", "out_lin", "Wo", "post_proj")
"""Names of the linear layer that ends an attention, beside the queries; else it is `output.dense` or `output` one level
up."""
PAIRS = (
    ("intermediate", "output"), ("fc1", "fc2"), ("c_fc", "c_proj"), ("lin1", "lin2"), ("linear_1", "linear_2"),
    ("layer_1", "layer_2"), ("up_proj", "down_proj"), ("gate_up_proj", "down_proj"), ("wi", "wo"), ("wi_0", "wo"),
    ("Wi", "Wo"), ("w1", "w2"), ("fc_in", "fc_out"), ("dense_h_to_4h", "dense_4h_to_h"), ("ffn", "ffn_output"),
    ("0", "2"),
)  # fmt: skip
"""Names of the linear layers that begin and end a feed-forward network."""


@dataclass(frozen=True)
class AdapterPlace:
    """Where an adapter can stand: full names of the linear layers that begin and end a sub-layer."""

    exit: str
    role: str
    entry: str | None = None
    """Of a feed-forward network only."""

    @property
    def layer(self) -> tuple[str, int]:
        """(list of layers, number in it): the first numbered part of the name."""
        parts = self.exit.split(".")
        position = next(index for index, part in enumerate(parts) if part.isdigit())
        return ".".join(parts[:position]), int(parts[position])


def places(model: nn.Module) -> list[AdapterPlace]:
    """Every place in the layers of `model`, by the names of its linear layers, in their order."""
    modules: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(isinstance(modules.get(above), BaseTunerLayer) for above in _above(name))
        modules |= {} if inside else {name: module}

    def linear(name: str) -> bool:
        module = modules.get(name)
        base = module.get_base_layer() if isinstance(module, BaseTunerLayer) else module
        owner = modules.get(name.rpartition(".")[0])
        return isinstance(base, nn.Linear | Conv1D) and not isinstance(owner, nn.MultiheadAttention)

    adapter_places: list[AdapterPlace] = []
    for name in modules:
        if not any(part.isdigit() for part in name.split(".")) or any(
            word in name for word in ("expert", "router", "norm")
        ):
            continue  # a head; one of several networks, of which each token passes only some; what chooses among them
        above = name.rpartition(".")[0]
        if any(linear(f"{name}.{each}") for each in QUERIES):
            ends = [*(f"{name}.{each}" for each in OUTPUTS), f"{above}.output.dense", f"{above}.output"]
            adapter_places += [AdapterPlace(each, ATTENTION) for each in ends if linear(each)][:1]
        elif linear(f"{name}.in_proj") and linear(
            f"{above}.output.dense"
        ):  # DeBERTa; a state-space mixer ends otherwise
            adapter_places.append(AdapterPlace(f"{above}.output.dense", ATTENTION))
        for begins, ends_in in PAIRS:
            entry, exit = f"{name}.{begins}", f"{name}.{ends_in}"
            if not linear(entry):
                entry, exit = f"{entry}.dense", f"{exit}.dense"  # BERT's family
            if linear(entry) and linear(exit):
                adapter_places.append(AdapterPlace(exit, FEED_FORWARD, entry))
                break
    return list(
        {
            place.exit: place for place in adapter_places if any(part.isdigit() for part in place.exit.split("."))
        }.values()
    )


def places_for(model: nn.Module, kind: str, layers: Iterable[int] | None = None) -> list[AdapterPlace]:
    """The places of one kind of adapter. Raises ValueError, a sentence, where a layer has none."""
    adapter_places, what = places(model), type(model).__name__
    by_role = {role: {place.layer for place in adapter_places if place.role == role} for role in READS[kind]}
    stacks = {role: {stack for stack, _ in layers_with} for role, layers_with in by_role.items()}
    if set.intersection(*stacks.values()):  # else each role has lists of its own, as in XLM
        stacks = dict.fromkeys(stacks, set.union(*stacks.values()))
    for role, mine in by_role.items():
        if not mine:
            raise ValueError(f"finds no linear layer that ends the {role} of {what}{_instead(kind, role)}")
        for stack in sorted(stacks[role]):
            count = len(model.get_submodule(stack))
            missing = [str(number) for number in range(count) if (stack, number) not in mine]
            if missing:
                which = "the layers" if len(missing) == count else f"layer {', '.join(missing)}"
                raise ValueError(
                    f"finds no linear layer that ends the {role} in {which} of {what}'s {stack}{_instead(kind, role)}"
                )
    wanted = None if layers is None else set(layers)
    highest = max(place.layer[1] for place in adapter_places)
    if wanted is not None and (beyond := sorted(number for number in wanted if number > highest)):
        raise ValueError(f"is to stand in layers {beyond}, but the last layer of {what} is {highest}")
    return [
        place for place in adapter_places if place.role in READS[kind] and (wanted is None or place.layer[1] in wanted)
    ]


def _instead(kind: str, role: str) -> str:
    return "; use kind: pfeiffer" if kind == "houlsby" and role == ATTENTION else "; use another tuner, such as lora"


def _above(name: str) -> Iterable[str]:
    parts = name.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def norms_of(model: nn.Module, chosen: Iterable[AdapterPlace]) -> list[str]:
    """Full names of the normalisations in the layers of these places, each layer's own."""
    layers = {f"{stack}.{number}." for stack, number in (place.layer for place in chosen)}
    return [
        name
        for name, module in model.named_modules()
        if "norm" in type(module).__name__.lower()
        and any(name.startswith(layer) for layer in layers)
        and isinstance(getattr(module, "weight", None), nn.Parameter)
        and not any(True for _ in module.children())
    ]


@dataclass
class BottleneckConfig(PeftConfig):  # type: ignore[misc]
    """What a bottleneck adapter is: PEFT's config, saved as `adapter_config.json`."""

    kind: str = "houlsby"
    reduction_factor: float = 16.0
    bottleneck_size: int | None = None
    """Width inside the adapter; without it, the model's width over `reduction_factor`, rounded down, at least 1."""
    non_linearity: str = "relu"
    scaling: float = 1.0
    adapter_dropout: float = 0.0
    init: str = "identity"
    init_std: float = 0.01
    layers: list[int] | None = None
    target_modules: list[str] | None = None
    """The linear layers behind which adapters stand. Found by themselves where it is None."""
    modules_to_save: list[str] | None = None
    """Modules that train whole and are saved with the adapter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = BOTTLENECK

    def to_dict(self) -> dict[str, Any]:
        """As JSON, in an order that does not change from one process to the next."""
        plain = super().to_dict()
        return {name: sorted(value) if isinstance(value, set) else value for name, value in plain.items()}

    def save_pretrained(self, save_directory: str, **keywords: object) -> None:
        """Write `adapter_config.json`, and this module beside it."""
        super().save_pretrained(save_directory, **keywords)
        beside = Path(save_directory) / FILE
        if beside.resolve() != Path(__file__).resolve():
            shutil.copyfile(__file__, beside)

    def build(self, entry: int, exit: int, place: str) -> nn.Module:
        """The adapter of one place, between layers of these widths."""
        return Bottleneck(self, entry, exit)


@dataclass
class FusionConfig(BottleneckConfig):
    """A learned mix of frozen adapters. Pfeiffer et al. 2021, "AdapterFusion", arxiv.org/abs/2005.00247."""

    members: list[dict[str, Any]] = field(default_factory=list)
    """Of each adapter its name, the keys of its BottleneckConfig, and `places`, where it stands."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = FUSION

    def build(self, entry: int, exit: int, place: str) -> nn.Module:
        field_names = {each.name for each in fields(BottleneckConfig) if each.init}
        here = [member for member in self.members if place in member["places"]]
        return FusedBottlenecks(
            [
                Bottleneck(BottleneckConfig(**{k: v for k, v in one.items() if k in field_names}), entry, exit)
                for one in here
            ],
            exit,
        )


class Bottleneck(nn.Module):  # type: ignore[misc]
    """Narrow, bend, widen: what is added to the output of a sub-layer, (…, dim) -> (…, dim)."""

    def __init__(self, config: BottleneckConfig, entry: int, exit: int) -> None:
        super().__init__()
        self.parallel, self.scaling = config.kind == "parallel", config.scaling
        dim = entry if self.parallel else exit
        size = config.bottleneck_size or max(1, int(dim // config.reduction_factor))
        self.down, self.up = nn.Linear(dim, size), nn.Linear(size, exit)
        self.activation, self.dropout = ACT2FN[config.non_linearity], nn.Dropout(config.adapter_dropout)
        if config.init == "near-identity":  # Houlsby et al. 2019, section 3.6: a normal cut at two deviations
            for each in (self.down, self.up):
                nn.init.trunc_normal_(each.weight, std=config.init_std, a=-2 * config.init_std, b=2 * config.init_std)
        else:  # as LoRA begins: nothing is added until `up` has learnt
            nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
            nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.down.bias)
        nn.init.zeros_(self.up.bias)

    def forward(self, output: Tensor, entered: Tensor | None) -> Tensor:
        """`output` of the sub-layer and the input that `entered` it, (…, dim) each."""
        read = entered if self.parallel else output
        if read is None:
            raise RuntimeError(
                "a parallel adapter was called, but the layer that begins its feed-forward network was not"
            )
        bent = self.dropout(self.activation(self.down(read.to(self.down.weight.dtype))))
        changed: Tensor = self.scaling * self.up(bent)
        return changed.to(output.dtype)


class FusedBottlenecks(nn.Module):  # type: ignore[misc]
    """Attention of a sub-layer's output to what each of its adapters would add: section 3.2 of the paper.

    value begins as the identity, so that the first mix is one of the adapters' own changes.
    """

    def __init__(self, members: list[Bottleneck], dim: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(members).requires_grad_(False)
        self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim, bias=False)
        for each in (self.query, self.key):
            nn.init.normal_(each.weight, std=0.02)
            nn.init.zeros_(each.bias)
        nn.init.eye_(self.value.weight)

    def forward(self, output: Tensor, entered: Tensor | None) -> Tensor:
        """`output` of the sub-layer and the input that `entered` it, (…, dim) each."""
        asks = output.to(self.query.weight.dtype)
        changes = torch.stack([member(asks, entered) for member in self.members], dim=-2)  # (…, adapters, dim)
        scores = (self.query(asks).unsqueeze(-2) * self.key(changes)).sum(-1)  # (…, adapters)
        mixed: Tensor = (scores.softmax(dim=-1).unsqueeze(-1) * self.value(changes)).sum(dim=-2)
        return mixed.to(output.dtype)

    def distance(self) -> Tensor:
        """Squared distance of `value` from the identity, a number: what the paper's regularisation keeps small."""
        weight = self.value.weight
        return (weight - torch.eye(weight.shape[0], device=weight.device, dtype=weight.dtype)).square().sum()


class BottleneckLayer(nn.Module, BaseTunerLayer):  # type: ignore[misc]
    """The linear layer that ends a sub-layer, and the adapters behind it. Several active ones add up."""

    adapter_layer_names = ("bottleneck_adapters",)

    def __init__(
        self, base_layer: nn.Module, name: str, config: BottleneckConfig, entry: nn.Module | None, place: str
    ) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.bottleneck_adapters = nn.ModuleDict()
        self.hook: RemovableHandle | None = None
        self.entered: Tensor | None = None
        self.update_layer(name, config, entry, place)

    def update_layer(self, name: str, config: BottleneckConfig, entry: nn.Module | None, place: str) -> None:
        """Add an adapter. `entry` begins the sub-layer, where the adapter reads its input."""
        exit = _widths(self.get_base_layer())[1]
        self.bottleneck_adapters[name] = config.build(exit if entry is None else _widths(entry)[0], exit, place)
        if entry is not None and self.hook is None:
            self.hook = entry.register_forward_pre_hook(self._remember, with_kwargs=True)
        self.set_adapter(self.active_adapters)

    def _remember(self, module: nn.Module, positional: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        if not self.disable_adapters:
            self.entered = positional[0] if positional else named["input"]

    def forget_entry(self) -> None:
        """Take the hook off the layer that begins the sub-layer."""
        if self.hook is not None:
            self.hook.remove()
        self.hook = self.entered = None

    def forward(self, states: Tensor, *rest: object, **named: object) -> Tensor:
        entered, self.entered = self.entered, None
        output: Tensor = self.base_layer(states, *rest, **named)
        if self.disable_adapters:
            return output
        active = [self.bottleneck_adapters[name] for name in self.active_adapters if name in self.bottleneck_adapters]
        return output + sum(adapter(output, entered) for adapter in active) if active else output

    def _freeze_non_trainable_peft_weights(self, adapter_names: list[str] | None = None) -> None:
        """PEFT asks after each change of what may learn: the adapters inside a fusion never do."""
        for adapter in self.bottleneck_adapters.values():
            if isinstance(adapter, FusedBottlenecks):
                adapter.members.requires_grad_(False)

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        raise ValueError(UNMERGEABLE)


UNMERGEABLE = "a bottleneck adapter is not linear, so that no weights of the base can hold it: keep it beside the base"


class BottleneckModel(BaseTuner):  # type: ignore[misc]
    """Puts the adapters behind their linear layers."""

    prefix = "bottleneck_"
    tuner_layer_cls = BottleneckLayer
    target_module_mapping: dict[str, list[str]] = {}

    def _prepare_adapter_config(
        self, peft_config: BottleneckConfig, model_config: dict[str, object]
    ) -> BottleneckConfig:
        if peft_config.target_modules is None:
            peft_config.target_modules = [
                place.exit for place in places_for(self.model, peft_config.kind, peft_config.layers)
            ]
        return peft_config

    def _prepare_model(self, peft_config: BottleneckConfig, model: nn.Module) -> None:
        self.entries = {place.exit: place.entry for place in places(model)}

    def _create_and_replace(
        self,
        peft_config: BottleneckConfig,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        parameter_name: str | None = None,
    ) -> None:
        entry = None
        if "parallel" in (peft_config.kind, *(member["kind"] for member in getattr(peft_config, "members", ()))):
            begins = self.entries.get(current_key)
            entry = None if begins is None else self.model.get_submodule(begins)
            entry = entry.get_base_layer() if isinstance(entry, BaseTunerLayer) else entry
        if isinstance(target, BottleneckLayer):
            target.update_layer(adapter_name, peft_config, entry, current_key)
            return
        layer = BottleneckLayer(target, adapter_name, peft_config, entry, current_key)
        if adapter_name not in self.active_adapters:
            layer.requires_grad_(False)
        self._replace_module(parent, target_name, layer, target)

    def _check_merge_allowed(self) -> None:
        raise ValueError(UNMERGEABLE)

    def _unload_and_optionally_merge(self, merge: bool = True, *rest: object, **named: object) -> Any:
        unloaded = [] if merge else [layer for layer in self.model.modules() if isinstance(layer, BottleneckLayer)]
        model = super()._unload_and_optionally_merge(merge, *rest, **named)
        for layer in unloaded:
            layer.forget_entry()
        return model

    @classmethod
    def _remove_adapter_name_from_key(cls, key: str, adapter_name: str) -> str:
        """`….bottleneck_adapters.default.down.weight` is saved without `default`: PEFT looks one level up only."""
        return key.replace(f".bottleneck_adapters.{adapter_name}.", ".bottleneck_adapters.", 1)


def _widths(module: nn.Module) -> tuple[int, int]:
    """(in, out) of a linear layer."""
    if isinstance(module, Conv1D):
        return int(module.weight.shape[0]), int(module.nf)
    return int(module.in_features), int(module.out_features)


def register(replace: bool = True) -> None:
    """Teach PEFT both methods. `register_peft_method` takes names of its own enum only: its tables are written to."""
    for name, config in ((BOTTLENECK, BottleneckConfig), (FUSION, FusionConfig)):
        if replace or name not in peft_mapping.PEFT_TYPE_TO_CONFIG_MAPPING:
            peft_mapping.PEFT_TYPE_TO_CONFIG_MAPPING[name] = config
            peft_mapping.PEFT_TYPE_TO_TUNER_MAPPING[name] = BottleneckModel
            peft_mapping.PEFT_TYPE_TO_PREFIX_MAPPING[name] = BottleneckModel.prefix


register(replace=False)  # a copy that was imported before stays
