"""Which linear layers of a model a tuner may touch: found by structure and name, the same way on every architecture.

A *layer* is a module that multiplies by one matrix: `torch.nn.Linear`, or GPT-2's `Conv1D` whose matrix is transposed.
The *body* is the model without the head of its task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pipelines.core.errors import IncompatibleError

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel

KEYS = ("key", "k", "k_proj", "k_lin", "key_proj", "k_head", "project_k", "wk", "key_global")
VALUES = ("value", "v", "v_proj", "v_lin", "value_proj", "v_head", "project_v", "wv", "value_global")
FUSED = ("c_attn", "query_key_value", "qkv", "qkv_proj", "wqkv", "in_proj", "kv_proj", "kv_b_proj")
"""What attention calls the projections to keys, to values, and to both at once (with or without the query), in small
letters."""


def ends(name: str, ending: str) -> bool:
    """Whether a module's full name ends with these whole words."""
    return name == ending or name.endswith(f".{ending}")


def inside(name: str, others: Iterable[str]) -> bool:
    """Whether the module of this full name is one of `others`, or lies within one."""
    return any(name == other or name.startswith(f"{other}.") for other in others)


def layers(model: PreTrainedModel) -> dict[str, Module]:
    """Every layer of the model by its full name, in the order of definition."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)}


def is_transposed(layer: Module) -> bool:
    """Whether the matrix stands as (in, out), as in GPT-2's `Conv1D`, and not as (out, in)."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(layer, Conv1D)


def sizes(layer: Module) -> tuple[int, int]:
    """(in, out) of a layer."""
    if is_transposed(layer):
        return tuple(layer.weight.shape)
    return layer.in_features, layer.out_features  # 4-bit weights are packed: their shape tells nothing


def trained_whole(model: PreTrainedModel, modules_to_save: Sequence[str], tuner: str) -> list[str]:
    """Full names of the modules that learn whole and are saved: `modules_to_save`, and those that no checkpoint
    brought.

    Full names, since PEFT compares mere ends of names, and `embeddings` would be `word_embeddings` too. Raises
    IncompatibleError.
    """
    names = [name for name, _ in model.named_modules() if name]
    absent = [each for each in modules_to_save if not any(ends(name, each) for name in names)]
    if absent:
        raise IncompatibleError(
            f"{tuner}.modules_to_save {absent} match no module of the model; it has {_last_words(names)}"
        )
    fresh = list(getattr(model, "finery_new_modules", ()))
    whole = [*dict.fromkeys([*fresh, *(name for name in names if any(ends(name, each) for each in modules_to_save))])]
    return [name for name in whole if not inside(name, [other for other in whole if other != name])]


def free_layers(model: PreTrainedModel, whole: Sequence[str]) -> dict[str, Module]:
    """Layers that an adapter may stand beside: not the output matrix, nor what learns whole (`whole`)."""
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return {name: layer for name, layer in layers(model).items() if layer is not output and not inside(name, whole)}


def body_layers(model: PreTrainedModel, whole: Sequence[str]) -> dict[str, Module]:
    """The free layers of the body. A model whose body carries no name of its own (T5's language model) is all body."""
    free, prefix = free_layers(model, whole), f"{getattr(model, 'base_model_prefix', '')}."
    named = any(name.startswith(prefix) for name, _ in model.named_modules())
    return {name: layer for name, layer in free.items() if not named or name.startswith(prefix)}


def chosen(
    model: PreTrainedModel,
    tuner: str,
    target_modules: Sequence[str] | str,
    whole: Sequence[str],
    exclude_modules: Sequence[str] = (),
    indices: Sequence[int] | None = None,
    stacks: Sequence[str] = (),
) -> dict[str, Module]:
    """The layers that the keys of a recipe name, by full name: PEFT's meaning of these keys, and no key without effect.

    `target_modules` is a text for every layer of the body, or ends of names; `exclude_modules` are ends of names of
    layers or of what holds them; `indices` are positions in the stacks of blocks, `stacks` what these are called
    (default: any). Raises IncompatibleError.
    """
    free = free_layers(model, whole)
    if isinstance(target_modules, str):
        target_layers, unmatched = body_layers(model, whole), []
        if not target_layers:
            raise IncompatibleError(
                f"{tuner} finds no linear layer in {type(model).__name__} that could have an update; use full"
            )
    else:
        target_layers = {
            name: layer for name, layer in free.items() if any(ends(name, each) for each in target_modules)
        }
        unmatched = [each for each in target_modules if not any(ends(name, each) for name in free)]
    if unmatched:
        raise IncompatibleError(
            f"{tuner}.target_modules {', '.join(unmatched)}: no linear layer of the model is named so; "
            f"those that can have an update are {_last_words(free)}"
        )
    idle = [each for each in exclude_modules if not any(inside(name, _parents(name, each)) for name in target_layers)]
    if idle:
        raise IncompatibleError(
            f"{tuner}.exclude_modules {', '.join(idle)}: none of the target layers is named so; they are "
            f"{_last_words(target_layers)}"
        )
    target_layers = {
        name: layer
        for name, layer in target_layers.items()
        if not any(_parents(name, each) for each in exclude_modules)
    }
    if indices is not None:
        target_layers = _at(target_layers, tuner, indices, stacks)
    if not target_layers:
        raise IncompatibleError(f"{tuner}.exclude_modules leaves no layer of the model to learn; name fewer of them")
    return target_layers


def _parents(name: str, words: str) -> list[str]:
    """The module itself, or those around it, whose full names end with `words`."""
    parts = name.split(".")
    whole = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return [each for each in whole if ends(each, words)]


def _at(
    target_layers: Mapping[str, Module], tuner: str, indices: Sequence[int], stacks: Sequence[str]
) -> dict[str, Module]:
    """The layers in the blocks at `indices`. The first number in a name is the block's, a later one an expert's."""
    name_of_stack = "|".join(re.escape(each) for each in stacks) or r"[^.]+"
    pattern = re.compile(rf"(?:^|.*?\.)(?:{name_of_stack})\.(\d+)\.")
    places = {name: int(match[1]) for name in target_layers if (match := pattern.match(name))}
    if not places:
        stack_names = sorted({match[1] for name in target_layers if (match := re.search(r"([^.]+)\.\d+\.", name))})
        raise IncompatibleError(
            f"{tuner}.layers_pattern {', '.join(stacks)}: no stack of layers is called so; the model has "
            f"{', '.join(stack_names)}"
        )
    beyond = [each for each in indices if each not in places.values()]
    if beyond:
        raise IncompatibleError(
            f"{tuner}.layers_to_transform has {beyond}, but the model's layers are numbered 0 to {max(places.values())}"
        )
    return {name: layer for name, layer in target_layers.items() if places.get(name) in indices}


def key_value_layers(body: Mapping[str, Module]) -> list[str]:
    """Full names of the projections to keys and to values; of the one matrix for all three where there is one."""
    attention = [name for name in body if _attends(name)]
    last = {name: name.rpartition(".")[2].lower() for name in attention}
    apart = [name for name in attention if last[name] in (*KEYS, *VALUES)]
    kinds = {last[name] in KEYS for name in apart}
    return apart if len(kinds) == 2 else [name for name in attention if last[name] in FUSED]


def feed_forward_ends(model: PreTrainedModel, body: Mapping[str, Module]) -> list[str]:
    """Full names of the layers that end each feed-forward network, and take its inner activations as input.

    In each block: of the layers outside attention that lead back to the model's width, the one with the widest input,
    and of several the last.
    """
    width = getattr(model.config, "hidden_size", None)
    last: dict[str, tuple[int, str]] = {}
    for name, layer in body.items():
        block = re.match(r"(.*\.\d+)\.", name)
        if block and not _attends(name) and sizes(layer)[1] == width:
            inner = sizes(layer)[0]
            if inner >= last.get(block[1], (0, ""))[0]:
                last[block[1]] = (inner, name)
    return [name for _, name in last.values()]


def _attends(name: str) -> bool:
    """Whether a layer belongs to attention, by what the modules around it are called."""
    return any("attention" in word or "attn" in word for word in name.lower().split(".")[:-1])


def _last_words(names: Iterable[str]) -> str:
    """The last words of full names, each once."""
    return ", ".join(sorted({name.rpartition(".")[2] for name in names if not name.rpartition(".")[2].isdigit()}))
