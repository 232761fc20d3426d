"""The state of an optimizer in a checkpoint: that of one process, whichever profile wrote it.

A checkpoint goes on under any profile and number of processes. Where weights are divided, the optimizer's tensors are
gathered one at a time into a file, and each process takes its own part of them from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from pipelines.core.interfaces import World
from pipelines.models.fsdp import part_of, whole

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
            full = whole(value)
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
    part = part_of(value, weight).to(weight.to_local().device).clone()
    return DTensor.from_local(
        part, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )
