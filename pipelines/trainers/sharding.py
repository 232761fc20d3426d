"""How the processes of a stage share its model, and what of it a checkpoint has whichever profile wrote it.

A stage trains under any profile and number of processes, and goes on under another. Where weights are divided (FSDP2,
`models/fsdp`), the first process alone opens and writes the model; the optimizer's tensors are gathered one at a time
into a file, and each process takes its own part of them from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from transformers.trainer import SCHEDULER_NAME

from pipelines.core.errors import StageError
from pipelines.core.interfaces import Context, World
from pipelines.models import fsdp
from pipelines.models.open_once import is_opened_once
from pipelines.trainers.training_args import ZERO

if TYPE_CHECKING:
    from transformers import Trainer as Base
else:
    Base = object


class ShardingTrainer(Base):  # type: ignore[misc]
    """A Trainer that divides, prepares and writes its model as the profile of its `context` says."""

    context: Context

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """What is to be divided is moved layer by layer, as it is divided."""
        if not self.context.world.is_sharded:
            super()._move_model_to_device(model, device)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """What has no weights of its own takes them from the first process when the model is divided."""
        if self.context.world.is_main or not is_opened_once(self.model):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _prepare_for_training(self, *given: Any, **keywords: Any) -> Any:
        """The model is divided here, once the weights of a checkpoint are in it and before there is an optimizer."""
        world = self.context.world
        if world.is_sharded:
            fsdp.shard(self.model, self.args.device, world.size)
            # transformers' word for a model that owns its placement: no DistributedDataParallel around it
            self.is_distributed_loading_by_transformers = True
        model, loader = super()._prepare_for_training(*given, **keywords)
        self._tell_distribution(model)
        return model, loader

    def _tell_distribution(self, model: nn.Module) -> None:
        """Emit what each process holds. Raises StageError where the model is not distributed as the profile says."""
        world = self.context.world
        zero = self.accelerator.state.deepspeed_plugin.zero_stage if self.is_deepspeed_enabled else None
        by_zero = next((profile for profile, stage in ZERO.items() if stage == zero), None)
        found = by_zero or (
            "fsdp2" if fsdp.is_sharded(model) else "ddp" if isinstance(model, DistributedDataParallel) else "single"
        )
        if world.size != self.accelerator.num_processes or found != (world.profile if world.size > 1 else "single"):
            raise StageError(
                f"launch asks for {world.profile} on {world.size} processes, but the model is prepared for {found} on "
                f"{self.accelerator.num_processes}; is another version of accelerate installed?"
            )
        if world.size > 1:
            held = self.context.gather(fsdp.elements(self.model))
            if world.is_main:
                ranks = [{"rank": rank, "local": own, "global": whole} for rank, (own, whole) in enumerate(held)]
                self.context.events.emit("distributed", profile=found, num_processes=world.size, ranks=ranks)

    def _defer_fsdp_gradient_reduction(self) -> AbstractContextManager[None]:
        """Nothing is put off: gradients that wait on each process for the last batch of a step would be whole."""
        return nullcontext()

    def unshared(self, model: nn.Module) -> AbstractContextManager[None]:
        """Inside the `with` block gradients may be added up on this process alone, where it has room for all."""
        if self.context.world.is_sharded:
            return nullcontext()
        alone: AbstractContextManager[None] = self.accelerator.no_sync(model)
        return alone

    def whole_model(self, write_back: bool = False) -> AbstractContextManager[None]:
        """Inside the `with` block the main process has the whole model, as `fsdp.gathered` says. Called on all."""
        if not self.context.world.is_sharded:
            return nullcontext()
        return fsdp.gathered(self.model, world=self.context.world, write_back=write_back)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        with self.whole_model():
            super().save_model(output_dir, _internal_call)

    def _save(self, output_dir: str | None = None, state_dict: Mapping[str, Tensor] | None = None) -> None:
        if self.args.should_save:
            super()._save(output_dir, state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.context.world.is_sharded:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        write_optimizer(self.optimizer, Path(output_dir), self.context.world)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        folder = Path(checkpoint or "")
        if checkpoint is None or not (self.context.world.is_sharded or (folder / OPTIMIZER).is_file()):
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        read_optimizer(self.optimizer, folder)
        self.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER_NAME, weights_only=True))

    def _load_best_model(self) -> None:
        with self.whole_model(write_back=True):
            if self.context.world.is_main or not self.context.world.is_sharded:
                super()._load_best_model()


OPTIMIZER = "optimizer.safetensors"
"""The optimizer's state in a checkpoint that sharded processes wrote; one process writes `optimizer.pt`."""
GROUPS = "param_groups"
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types of numbers by their names in a safetensors file (github.com/huggingface/safetensors, section Format)."""


def write_optimizer(optimizer: Optimizer, folder: Path, world: World) -> None:
    """Write the whole state of an optimizer of sharded weights into a checkpoint, one gathered tensor at a time.
    Called on every process; the first one writes."""
    state = optimizer.state_dict()
    tensors = {
        f"{place}.{name}": value
        for place, values in state["state"].items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }
    others = {
        str(place): {name: value for name, value in values.items() if not isinstance(value, Tensor)}
        for place, values in state["state"].items()
    }
    header: dict[str, Any] = {"__metadata__": {GROUPS: json.dumps(state[GROUPS]), "others": json.dumps(others)}}
    start = 0
    for name, value in tensors.items():
        end = start + value.numel() * value.element_size()
        header[name] = {"dtype": TYPES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
        start = end
    if world.is_main:
        folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / OPTIMIZER, "wb") if world.is_main else nullcontext() as file:
        if file is not None:
            file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            full = fsdp.whole(value)
            if file is not None:
                file.write(full.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            del full  # before the next one is gathered


def read_optimizer(optimizer: Optimizer, folder: Path) -> None:
    """Take back the state that a checkpoint has, whichever profile wrote it. A sharded weight takes its own part of
    each tensor, of a file that is mapped and not read."""
    written = folder / OPTIMIZER
    if written.is_file():
        with safe_open(str(written), framework="pt") as file:
            about = file.metadata()
            state: dict[int, dict[str, Any]] = {
                int(key): dict(rest) for key, rest in json.loads(about["others"]).items()
            }
            groups = json.loads(about[GROUPS])
            weights = _weights_by_place(optimizer, groups)
            for name in file.keys():  # noqa: SIM118
                place, _, key = name.partition(".")
                state[int(place)][key] = _like(file.get_tensor(name), weights[int(place)])
    else:
        stored = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True, mmap=True)
        groups = stored[GROUPS]
        weights = _weights_by_place(optimizer, groups)
        state = {
            place: {
                key: _like(value, weights[place]) if isinstance(value, Tensor) else value
                for key, value in values.items()
            }
            for place, values in stored["state"].items()
        }
    optimizer.load_state_dict({"state": state, GROUPS: groups})


def _weights_by_place(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> dict[int, Tensor]:
    return {
        place: weight
        for stored, group in zip(groups, optimizer.param_groups, strict=True)
        for place, weight in zip(stored["params"], group["params"], strict=True)
    }


def _like(value: Tensor, weight: Tensor) -> Tensor:
    """A number of the state as the weight needs it: what has the weight's shape is divided as it is."""
    if not isinstance(weight, DTensor) or value.shape != weight.shape:
        return value
    part = fsdp.part_of(value, weight).to(weight.to_local().device).clone()
    return DTensor.from_local(
        part, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )
