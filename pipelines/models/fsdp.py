"""The profile `fsdp2`: weights, gradients and optimizer state divided among the processes, on CPUs and GPUs alike.

torch's `fully_shard` (Zhao et al. 2023, "PyTorch FSDP", arxiv.org/abs/2304.11277, in its second form) cuts every weight
along its first dimension. A layer is gathered before it computes and given up behind it; the rest of the model, with
embeddings that are tied to the output, is one group that stays whole between a forward pass and its backward pass.

accelerate is not asked: its FSDP plugin becomes DistributedDataParallel on a CPU without a word. The Trainer is told
that the model owns its placement, as it is of models that `from_pretrained` divides.

What is saved is whole: weights are gathered on the first process, in its main memory.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from pipelines.core.errors import IncompatibleError
from pipelines.core.interfaces import World
from pipelines.models import log_probabilities, read_places
from pipelines.models.open_once import is_opened_once

# -- dividing a model --------------------------------------------------------------------------------------------------


def shard(model: nn.Module, device: torch.device, processes: int) -> None:
    """Divide the weights of `model`, in place, among the processes; `device` is where they compute.

    Each layer of a stack is a group of its own, and so is what remains. A model of several parts that are asked one by
    one names them by `parts_asked_alone()`. Weights that only the first process has are handed out, one at a time.
    Raises IncompatibleError for a weight that cannot be divided.
    """
    for name, weight in model.named_parameters():
        if weight.ndim == 0 or not (weight.is_floating_point() or weight.is_complex()):
            kind = "a single number" if weight.ndim == 0 else f"packed as {weight.dtype}"
            raise IncompatibleError(f"the weight {name} is {kind}, which fsdp2 cannot divide; use the profile ddp")
    mesh = init_device_mesh(device.type, (processes,))
    once = is_opened_once(model)
    full = dict(model.named_parameters()) if once and torch.distributed.get_rank() == 0 else {}
    for part in model.parts_asked_alone() if hasattr(model, "parts_asked_alone") else [model]:
        try_heads(part, once)
        for layer in layers_of(part):
            fully_shard(layer, mesh=mesh)
        fully_shard(part, mesh=mesh)
        if hasattr(part, "generate"):  # PEFT's asks the model inside, not itself
            register_fsdp_forward_method(part, "generate")
    if once:
        _hand_out(model, full)
    for each in (model, *model.modules()):
        if each is model or isinstance(each, PreTrainedModel):  # generation goes on until every process is done
            each._is_fsdp_managed_module = True


def _hand_out(model: nn.Module, full: dict[str, nn.Parameter]) -> None:
    """Every process's part of the weights, and the buffers, from the first one, which gives each up behind it."""
    world = World(rank=torch.distributed.get_rank())
    for name, weight in model.named_parameters():
        _take(weight, full.pop(name, None), world)
    for buffer in model.buffers():
        torch.distributed.broadcast(buffer, src=0)
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # glibc keeps what was freed: here a whole model
        libc.malloc_trim(0)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of the outermost stacks of `model` whose weights are nobody else's.

    A stack is a list of modules of one kind that are called. Weights of two groups would be gathered by one of them
    only: layers that share some with others, or with what is no layer, stay with the rest.
    """
    found: list[nn.Module] = []

    def look(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(child, nn.ModuleList) and _is_stack(child):
                found.extend(child)
            else:
                look(child)

    look(model)
    layers = list(dict.fromkeys(found))
    owners: dict[int, set[int]] = {}
    for place, layer in enumerate(layers):
        for weight in layer.parameters():
            owners.setdefault(id(weight), set()).add(place)

    def look_beside(module: nn.Module) -> None:
        if module not in owned:
            for weight in module.parameters(recurse=False):
                owners.setdefault(id(weight), set()).add(-1)
            for child in module.children():
                look_beside(child)

    owned = set(layers)
    look_beside(model)
    return [layer for layer in layers if all(len(owners[id(weight)]) == 1 for weight in layer.parameters())]


def _is_stack(modules: nn.ModuleList) -> bool:
    kinds = {type(each) for each in modules}
    return (
        len(kinds) == 1
        and next(iter(kinds)).forward is not nn.Module.forward
        and any(True for _ in modules.parameters())
    )


FOUND = ("finery_output_is_last", "finery_narrowing_is_exact", read_places.TEXT, read_places.WANTED)
"""What a model remembers of `try_heads`."""


def try_heads(model: nn.Module, once: bool = False) -> None:
    """Find out now what a first batch would: whether heads look at one place at a time, and which places of a
    text they read.

    That is tried on the model without its wrappers, which sharded weights do not answer. With `once` the first process
    tries, which alone has the weights, and tells the others. Called on every process then.
    """
    modules = {module: None for whole in (model, *getattr(model, "sharing", ())) for module in whole.modules()}
    bare = [each for each in modules if isinstance(each, PreTrainedModel) and each.base_model is not each]
    if not once or torch.distributed.get_rank() == 0:
        for each in bare:
            _try_head(each)
    if once:
        found = [[{name: getattr(each, name) for name in FOUND if hasattr(each, name)} for each in bare]]
        torch.distributed.broadcast_object_list(found, src=0)
        for each, values in zip(bare, found[0], strict=True):
            vars(each).update(values)


def _try_head(bare: PreTrainedModel) -> None:
    try:
        words = bare.get_input_embeddings().weight
        ids = (torch.arange(16, device=words.device).reshape(2, 8) * 7 + 3) % len(words)
    except (AttributeError, NotImplementedError):
        return
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if bare.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids.clone()
    wanted = torch.zeros_like(ids, dtype=torch.bool)
    wanted[:, 2:5] = True
    layer = read_places.last_layer(bare)
    if log_probabilities.output_layer(bare) is not None:
        log_probabilities.output_is_last(bare, inputs, wanted)
        if log_probabilities.narrowing_is_exact(bare, inputs, wanted) and layer is not None:
            read_places.wanted_rule(bare, layer, inputs, wanted)
    elif layer is not None:
        if "MultipleChoice" in type(bare).__name__:  # reads (batch, choices, length)
            inputs = {name: value[None] for name, value in inputs.items()}
        read_places.text_rule(bare, layer, inputs)


def elements(model: nn.Module) -> tuple[int, int]:
    """(numbers of the weights that this process holds, numbers of the whole model's weights)."""
    weights = list(model.parameters())
    held = [getattr(weight, "ds_tensor", None) for weight in weights]  # DeepSpeed's part; `ds_numel` is of all
    return (
        sum((local(weight) if own is None else own).numel() for weight, own in zip(weights, held, strict=True)),
        sum(weight.numel() if own is None else weight.ds_numel for weight, own in zip(weights, held, strict=True)),
    )


def local(weight: Tensor) -> Tensor:
    """This process's part of a weight, or the weight where it is whole."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def whole(weight: Tensor) -> Tensor:
    """A small weight, of all processes' parts. Called on every process."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def give_up(model: nn.Module) -> None:
    """Keep this process's part alone of a divided model: what is in no layer stays whole after a pass without
    gradients."""
    if isinstance(model, FSDPModule):
        model.reshard()


def is_sharded(model: nn.Module) -> bool:
    """Whether any part of `model` was divided."""
    return any(isinstance(each, FSDPModule) for each in model.modules())


# -- the whole model, on one process -----------------------------------------------------------------------------------


@contextmanager
def gathered(*models: nn.Module, world: World, write_back: bool = False) -> Iterator[None]:
    """Inside the `with` block the first process holds whole models in its main memory, of their own classes, as if they
    had never been divided; those of the others have no numbers. Called on every process.

    With `write_back` every process takes its part of what the first one's weights have become. Weights are gathered one
    at a time, so that no device holds more than one beside its own part.
    """
    together = nn.ModuleList(models)
    if any(hasattr(weight, "ds_id") for weight in together.parameters()):  # divided by DeepSpeed's third stage
        with deepspeed_gathered(list(together.parameters())):
            yield
        return
    wrapped = [(each, type(each)) for each in together.modules() if isinstance(each, FSDPModule)]
    for each, _ in wrapped:
        each.reshard()  # after a pass without gradients the last group is still whole
    places = [
        (module, name, weight)
        for module in together.modules()
        for name, weight in module._parameters.items()
        if isinstance(weight, DTensor)
    ]
    full: dict[int, nn.Parameter] = {}
    for _, _, weight in places:
        if id(weight) not in full:
            full[id(weight)] = _on_the_first(weight, world)
    hooks = {module: module._load_state_dict_post_hooks for module, _, _ in places}  # which expect divided weights
    for module, name, weight in places:
        module._parameters[name] = full[id(weight)]
        module._load_state_dict_post_hooks = OrderedDict()
    for each, kind in wrapped:
        each.__class__ = kind.__bases__[1]  # fully_shard made a class of (FSDPModule, the model's own)
    try:
        yield
    finally:
        for each, kind in wrapped:
            each.__class__ = kind
        for module, name, weight in places:
            module._parameters[name] = weight
            module._load_state_dict_post_hooks = hooks[module]
    if write_back:
        for weight in {id(weight): weight for _, _, weight in places}.values():
            _take(weight, full[id(weight)], world)


def deepspeed_gathered(weights: list[nn.Parameter]) -> AbstractContextManager[None]:
    """Inside the `with` block every process has whole weights: DeepSpeed has no way to gather them on one."""
    import deepspeed  # type: ignore[import-not-found, unused-ignore]

    whole_weights: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(weights)
    return whole_weights


def _on_the_first(weight: DTensor, world: World) -> nn.Parameter:
    full = whole(weight.detach())
    kept = full.cpu().clone() if world.is_main else torch.empty(weight.shape, dtype=weight.dtype, device="meta")
    return nn.Parameter(kept, requires_grad=weight.requires_grad)


def _take(weight: DTensor, full: nn.Parameter | None, world: World) -> None:
    """This process's part of the first one's `full` into `weight`."""
    device = weight.to_local().device
    sent = (
        full.detach().to(device)
        if full is not None and world.is_main
        else torch.empty(weight.shape, dtype=weight.dtype, device=device)
    )
    torch.distributed.broadcast(sent, src=0)
    with torch.no_grad():
        weight.to_local().copy_(part_of(sent, weight))


def part_of(full: Tensor, like: DTensor) -> Tensor:
    """The part of `full` that this process holds of `like`: rows, divided as torch.chunk divides them."""
    mesh, (placement,) = like.device_mesh, like.placements
    chunks = full.chunk(mesh.size(), dim=placement.dim)
    here = mesh.get_local_rank()
    return chunks[here] if here < len(chunks) else full.narrow(placement.dim, 0, 0)
