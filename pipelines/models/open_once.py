"""Opening a model that is to be divided among processes: one of them reads or draws the weights, the others only the
shape.

Each process used to open the whole model before it kept its part, so a host needed as much memory as it has processes.
Now the first process opens it and tells the others what it is. They make the same modules with weights of zeros that
take no memory: pages that nobody has written to are the operating system's one page of zeros. `fsdp.shard` hands out
the weights, one at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import TYPE_CHECKING, Any

from pipelines.core.interfaces import Context, Head
from pipelines.models.heads import auto_class
from pipelines.models.opening import fuse_activations

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

MARK = "finery_opened_once"
"""An attribute of modules whose weights only the first process has, until they are divided."""
WITHOUT_WEIGHTS = "finery_without_weights"
"""An attribute of a model that has zeros for weights, which another process has."""


@dataclass(frozen=True)
class ModelShape:
    """What the other processes need to know of a model."""

    config: PreTrainedConfig
    generation_config: Any
    new_modules: list[str]
    name_or_path: str
    weights: list[tuple[str, tuple[int, ...], str]]
    """Name, shape and type of each."""


def open_once(context: Context, head: Head, opened: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    """What `opened` gives, with fused activations: where weights are to be divided, on the first process itself and on
    the others a model of its shape. Called on every process.

    A model that the others cannot make of its configuration, such as one with code of its own, is opened by each.
    """
    model = _once(context, head, opened)
    fuse_activations(model)
    return model


def _once(context: Context, head: Head, opened: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    if not context.world.is_sharded:
        return opened()
    main = context.world.is_main
    model = opened() if main else None
    shape: ModelShape | None = context.gather(None if model is None else _shape_of(model))[0]
    if model is None and shape is not None:
        model = _of_shape(shape, head)
    if not all(context.gather(model is not None and shape is not None)):
        return opened() if model is None or not main else model
    assert model is not None
    for module in model.modules():  # of which some may end in another model
        setattr(module, MARK, True)
    return model


def is_opened_once(model: nn.Module) -> bool:
    """Whether only the first process has the weights of some part of `model`."""
    return any(getattr(module, MARK, False) for module in model.modules())


def _shape_of(model: PreTrainedModel) -> ModelShape | None:
    if type(model).__module__.split(".")[0] not in ("transformers", "pipelines"):
        return None
    return ModelShape(
        model.config,
        getattr(model, "generation_config", None),
        list(getattr(model, "finery_new_modules", [])),
        model.name_or_path,
        _weights_of(model),
    )


def _weights_of(model: nn.Module) -> list[tuple[str, tuple[int, ...], str]]:
    return [(name, tuple(weight.shape), str(weight.dtype)) for name, weight in model.named_parameters()]


def _of_shape(shape: ModelShape, head: Head) -> PreTrainedModel | None:
    """A model with zeros for weights; None where the configuration does not make one of the same weights."""
    from transformers import initialization

    config = copy.deepcopy(shape.config)
    with initialization.no_init_weights():
        model: PreTrainedModel = auto_class(head).from_config(
            config, attn_implementation=shape.config._attn_implementation
        )
    model.tie_weights()
    if _weights_of(model) != shape.weights:
        return None
    for weight in model.parameters():
        weight.data = _zeros(weight)
    setattr(model, WITHOUT_WEIGHTS, True)
    model.generation_config = shape.generation_config
    model.finery_new_modules = shape.new_modules
    model.name_or_path = shape.name_or_path
    return model


def _zeros(weight: Tensor) -> Tensor:
    """Zeros of the shape and type of `weight`, in pages that nobody has written to."""
    import numpy as np
    import torch

    size = weight.numel() * weight.dtype.itemsize
    if not size:
        return weight.detach()
    # memory of its own: what the allocator gives again was written to, and may be no number
    pages = torch.from_numpy(np.frombuffer(mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS), np.uint8))
    return pages.view(weight.dtype).reshape(weight.shape)


def copied(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of `model` as it is now; where it has zeros for weights, so has the copy, which takes no memory either."""
    from torch.nn import Parameter

    made: dict[int, Any] = {}
    if hasattr(model, WITHOUT_WEIGHTS):
        made = {id(each): Parameter(_zeros(each), each.requires_grad) for each in model.parameters()}
    return copy.deepcopy(model, made)
