"""The layers of any model from the embeddings up to the head, found by its modules, without a table of architectures.

A model is read as a path: what stands before the first stack (embeddings, positions), the layers of each stack, an
encoder's before a decoder's, and the head. A stack is a list of modules in the body; lists of one length beside each
other (XLM keeps attentions, norms and feed-forwards apart) are one stack. Weights that layers share belong to the
lowest of them, and a head whose matrix is the embeddings' own belongs to the embeddings: they are one weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel

EMBEDDINGS = "embeddings"
HEAD = "head"


class LayerGroup(NamedTuple):
    """The weights of one layer."""

    name: str
    """`embeddings`, `head`, or the path of the layer, such as `bert.encoder.layer.0`."""
    parameters: tuple[str, ...]
    """Names as in `model.named_parameters()`."""


def layer_groups(model: PreTrainedModel) -> list[LayerGroup]:
    """Every weight of the model in the group of its layer, from the lowest to the highest; no group is empty."""
    stacks = _stacks(model)
    order = [EMBEDDINGS, *(layer for stack in stacks for layer in stack.values()), HEAD]
    members: dict[str, list[str]] = {name: [] for name in dict.fromkeys(order)}
    placed = _Placing(model, stacks)
    for name, _ in model.named_parameters():
        members[placed.group_of(name)].append(name)
    return [LayerGroup(name, tuple(names)) for name, names in members.items() if names]


def in_body(model: PreTrainedModel, name: str) -> bool:
    """Whether a parameter or module is of the pretrained body: no head, no pooler, nothing that was new."""
    fresh = getattr(model, "finery_new_modules", ())
    if "pooler" in name.split(".") or any(name == each or name.startswith(f"{each}.") for each in fresh):
        return False
    prefix = getattr(model, "base_model_prefix", "")
    if prefix and hasattr(model, prefix):
        return name.startswith(f"{prefix}.")
    return name.partition(".")[0] not in _heads_beside_the_stacks(model)


def new_weights(model: PreTrainedModel) -> set[str]:
    """Names of the parameters that the checkpoint did not bring: at their random values they cannot stay."""
    fresh = tuple(f"{module}." for module in getattr(model, "finery_new_modules", ()))
    return {name for name, _ in model.named_parameters() if name.startswith(fresh)} if fresh else set()


def _heads_beside_the_stacks(model: PreTrainedModel) -> list[str]:
    """Children after the last stack, in models whose head class holds the parts of the body itself (T5's)."""
    children = [name for name, _ in model.named_children()]
    holding = [name for name, child in model.named_children() if any(_is_list(each) for each in child.modules())]
    return children[children.index(holding[-1]) + 1 :] if holding else []


def _is_list(module: Module) -> bool:
    from torch import nn

    return isinstance(module, nn.ModuleList) and len(module) > 0


def _stacks(model: PreTrainedModel) -> list[dict[str, str]]:
    """For each stack its entries (`encoder.layer.0`) with the names of their layers; encoders come first."""
    lists = [
        (name, module) for name, module in model.named_modules() if _is_list(module) and in_body(model, f"{name}.0")
    ]
    outer = [(name, module) for name, module in lists if not any(name.startswith(f"{other}.") for other, _ in lists)]
    beside: dict[tuple[str, int], list[str]] = {}
    for name, module in outer:
        beside.setdefault((name.rpartition(".")[0], len(module)), []).append(name)
    stacks = [
        {f"{name}.{index}": f"{names[0]}.{index}" for index in range(length) for name in names}
        for (_, length), names in beside.items()
    ]
    return sorted(stacks, key=lambda stack: "decoder" in next(iter(stack)).split("."))


class _Placing:
    """Which group a parameter belongs to."""

    def __init__(self, model: PreTrainedModel, stacks: list[dict[str, str]]) -> None:
        from torch import nn

        self.model = model
        self.layers = {entry: layer for stack in stacks for entry, layer in stack.items()}
        self.ends = {_parent(stack): list(stack.values())[-1] for stack in stacks}
        self.tables = {name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
        self.order = {name: position for position, (name, _) in enumerate(model.named_modules())}
        self.first = {_parent(stack): self.order[next(iter(stack))] for stack in stacks}

    def group_of(self, name: str) -> str:
        """The layer of a parameter."""
        parts = name.split(".")
        if not in_body(self.model, name):
            return HEAD
        for length in range(len(parts) - 1, 0, -1):
            if (layer := self.layers.get(".".join(parts[:length]))) is not None:
                return layer
        module = ".".join(parts[:-1])
        if module in self.tables or any("embed" in part.lower() for part in parts):
            return EMBEDDINGS
        # A norm that ends a stack goes with its last layer, what leads into the first stack with the embeddings.
        before = [stack for stack, start in self.first.items() if start < self.order.get(module, 0)]
        near = [stack for stack in before if module.startswith(stack)] or before
        return self.ends[near[-1]] if near else EMBEDDINGS


def _parent(stack: dict[str, str]) -> str:
    """The module that holds the stack's list."""
    return next(iter(stack)).rpartition(".")[0].rpartition(".")[0]
