"""Torch's fused attention on a processor, where a batch is large enough for it.

Models are opened with eager attention on a processor (`models/opening.py`): it is the faster one for short texts. It
writes the score of every pair of tokens, several times over; once these are more than the
caches hold, the fused kernel, which never holds them all (Dao et al. 2022, "FlashAttention", arxiv.org/abs/2205.14135),
is the faster one (docs/decisions/0049-attention-by-size-on-a-processor.md). With AMX it is no slower for short ones, so
a model that is asked there takes it always. Rounding differs, and what a batch is computed with on a machine depends on
its shape alone.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pipelines.core.costs import fused_pays
from pipelines.core.launch import processor_flags
from pipelines.models.layer_compilation import is_compiled
from pipelines.models.read_places import without_wrappers

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from pipelines.core.interfaces import Precision

TEXTS = ("input_ids", "decoder_input_ids", "inputs_embeds")
EAGER, FUSED = "eager", "sdpa"


@contextmanager
def attention_by_size(model: nn.Module, small: str | None = None) -> Iterator[None]:
    """Inside the `with` block large batches are answered with fused attention, and the others as before.

    To be used by one thread at a time. Calls that hand out attention's weights stay eager, and so does a model that is
    compiled, lies elsewhere than on the CPU, was opened with another attention or has scores that the fused kernel does
    not know. A model that is only asked is eager wherever a call needs a gradient. For one that learns `small` names
    the attention of what is not large: it takes fused attention from `core.costs.SCORES_LEARNT` on, in every call that
    drops no attention weight, and is asked without gradient by the same bounds, so that a policy and its reference are
    computed alike.
    """
    configs, learning = _configs(model), small is not None
    if not configs or (learning and _weighs_distance(model)):
        yield
        return
    heads = max(_heads(config) for config in configs)
    drops = learning and _drops_weights(model)
    small = EAGER if small is None or _knows_attentions_by_name(model) else small

    def choose(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        shown = named.get("output_attentions") or any(config.output_attentions for config in configs)
        unfit = torch.is_grad_enabled() and (not learning or (drops and module.training))
        precision = _precision()
        large = fused_pays(heads * _pairs(given, named), precision, learning)
        large = large or (has_amx() and not learning and precision != "fp16")
        chosen = FUSED if large and not (shown or unfit) else EAGER if shown else small
        for config in configs:
            if config._attn_implementation != chosen:
                config._attn_implementation = chosen

    bare = without_wrappers(model)
    asked = {id(each): each for each in (model, bare, getattr(bare, "base_model", bare))}
    hooks = [each.register_forward_pre_hook(choose, with_kwargs=True) for each in asked.values()]
    try:
        with _masks_of_keys(FUSED, small):
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for config in configs:
            config._attn_implementation = EAGER


@contextmanager
def _masks_of_keys(*names: str) -> Iterator[None]:
    """Inside the `with` block the attentions of these names, where every query sees the same keys, are handed a mask
    (batch, 1, 1, key), which they spread, in place of one of all pairs, which each layer would convert and read."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, bidirectional_mask_function

    def of_keys(make: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
        def mask(*given: Any, **named: Any) -> Tensor | None:
            same = named.get("mask_function") is bidirectional_mask_function and "q_length" in named
            return make(*given, **named | ({"q_length": 1} if same else {}))

        return mask

    plain = {name: ALL_MASK_ATTENTION_FUNCTIONS[name] for name in names}
    try:
        for name, make in plain.items():
            ALL_MASK_ATTENTION_FUNCTIONS[name] = of_keys(make)
        yield
    finally:
        for name, make in plain.items():
            ALL_MASK_ATTENTION_FUNCTIONS[name] = make


@cache
def has_amx() -> bool:
    """Whether the processor has Intel's tiles for products."""
    return "amx_bf16" in processor_flags()


def _precision() -> Precision:
    """What products are computed in on a CPU now."""
    if not torch.is_autocast_enabled("cpu"):
        return "no"
    return "bf16" if torch.get_autocast_dtype("cpu") == torch.bfloat16 else "fp16"


def _configs(model: nn.Module) -> list[PreTrainedConfig]:
    """The configurations that the model's parts look their attention up in; none where it is not to be changed."""
    from transformers import PreTrainedModel

    modules = list(model.modules())
    parts = [each for each in modules if isinstance(each, PreTrainedModel)]
    if not parts or any(is_compiled(each) for each in modules):
        return []
    weights = (pair for each in modules for pair in each._parameters.items())
    if any(weight is not None and (weight.device.type != "cpu" or name.endswith("sinks")) for name, weight in weights):
        return []
    if any(_changes_scores(part.config) for part in parts):
        return []
    for part in parts:
        ours = type(part).__module__.split(".")[0] in ("transformers", "pipelines")
        can = ours and part._supports_sdpa and part._can_set_attn_implementation()
        if not can or part.config._attn_implementation != EAGER:
            return []
    return list({id(part.config): part.config for part in parts}.values())


def _changes_scores(config: PreTrainedConfig) -> bool:
    """Whether scores are capped, or computed in another type, as eager attention of that family alone does it."""
    capped = any(value for name, value in vars(config).items() if "softcap" in name and "final" not in name)
    return capped or bool(getattr(config, "reorder_and_upcast_attn", False))


BY_NAME = re.compile(r'_attn_implementation (?:[!=]=|(?:not )?in) \(?"(?:eager|sdpa)"')
"""Code of a family that does one thing for transformers' attentions and another for all that it does not know."""


def _knows_attentions_by_name(model: nn.Module) -> bool:
    """Whether a part of the model would take an attention of another name for something else, as sparse ones do that
    hide keys by a mask for `eager` and `sdpa` alone. GPT-2 asks only where `_changes_scores` says so."""
    from transformers import PreTrainedModel

    parts = [each for each in model.modules() if isinstance(each, PreTrainedModel) and each.config.model_type != "gpt2"]
    return any(_asks_by_name(type(each).__module__) for each in parts)


@cache
def _asks_by_name(module: str) -> bool:
    """Whether the code of a family, the module of that name, does so: it is read once."""
    return BY_NAME.search(inspect.getsource(sys.modules[module])) is not None


def _drops_weights(model: nn.Module) -> bool:
    """Whether dropout may fall on attention's weights: the fused kernel has none, and torch would write them all."""
    parts = [each for each in model.modules() if "attention" in type(each).__name__.lower()]
    chances = [child.p for part in parts for child in part.children() if isinstance(child, nn.Dropout)]
    chances += [
        value for part in parts for name, value in vars(part).items() if isinstance(value, float) and "drop" in name
    ]
    return any(chances)


def _weighs_distance(model: nn.Module) -> bool:
    """Whether a number for each pair of tokens is added to the scores, and kept: of one that learns torch's gradient
    writes all scores again."""
    added = any(getattr(config, "position", None) in ("alibi", "relative") for config in _configs(model))
    return added or any("relative" in name for name, _ in model.named_parameters())


def _heads(config: PreTrainedConfig) -> int:
    return int(getattr(config, "num_attention_heads", 1) or 1)


def _pairs(given: tuple[Any, ...], named: dict[str, Any]) -> int:
    """Pairs of places of the texts that a call hands over: rows x length² of the longer side."""
    texts = [each for each in (*given[:1], *map(named.get, TEXTS)) if isinstance(each, Tensor)]
    shapes = [each.shape[:-1] if each.is_floating_point() else each.shape for each in texts if each.ndim >= 2]
    return max((shape.numel() * shape[-1] for shape in shapes), default=0)
