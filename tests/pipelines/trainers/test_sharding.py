"""A model is distributed as the profile says, and a checkpoint has the whole state of its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed
from safetensors.torch import load_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pipelines.core.errors import StageError
from pipelines.core.interfaces import Context, World
from pipelines.models import fsdp
from pipelines.trainers import sharding


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A world of gloo with this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def divided(model: nn.Module) -> nn.Module:
    fsdp.shard(model, torch.device("cpu"), 1)
    return model


@pytest.mark.parametrize(
    ("profile", "prepare", "found", "processes"),
    [
        ("fsdp2", DistributedDataParallel, "ddp", 2),
        ("fsdp2", lambda model: model, "single", 2),
        ("ddp", divided, "fsdp2", 2),
        ("ddp", lambda model: model, "single", 2),
        ("zero3", DistributedDataParallel, "ddp", 2),
        ("fsdp2", divided, "fsdp2", 1),
        ("ddp", DistributedDataParallel, "ddp", 3),
    ],
)
def test_another_kind_or_size_than_was_asked_for_is_an_error(
    profile: Any,
    prepare: Callable[[nn.Module], nn.Module],
    found: str,
    processes: int,
    context: Callable[..., Context],
    events: Any,
    group: None,
) -> None:
    place = context(world=World(0, 2, profile))
    trainer: Any = SimpleNamespace(
        context=place, accelerator=SimpleNamespace(num_processes=processes), is_deepspeed_enabled=False
    )
    with pytest.raises(StageError) as raised:
        sharding.ShardingTrainer._tell_distribution(trainer, prepare(nn.Sequential(nn.Linear(2, 2))))
    assert f"launch asks for {profile} on 2 processes" in str(raised.value)
    assert f"is prepared for {found} on {processes}; is another" in str(raised.value)
    assert events(place) == []


@pytest.mark.parametrize(("profile", "prepare"), [("ddp", DistributedDataParallel), ("fsdp2", divided)])
def test_what_each_process_holds_is_told(
    profile: Any,
    prepare: Callable[[nn.Module], nn.Module],
    context: Callable[..., Context],
    events: Any,
    group: None,
) -> None:
    place = context(world=World(0, 2, profile), gather=lambda value: [value, (1, value[1])])
    model = nn.Sequential(nn.Linear(2, 2))
    trainer: Any = SimpleNamespace(
        context=place, model=model, accelerator=SimpleNamespace(num_processes=2), is_deepspeed_enabled=False
    )
    sharding.ShardingTrainer._tell_distribution(trainer, prepare(model))
    (told,) = events(place)
    assert (told["event"], told["profile"], told["num_processes"]) == ("distributed", profile, 2)
    assert told["ranks"] == [{"rank": 0, "local": 6, "global": 6}, {"rank": 1, "local": 1, "global": 6}]


def stepped(kind: type[torch.optim.Optimizer], **words: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    optimizer = kind(
        [{"params": model[0].parameters(), "weight_decay": 0.1}, {"params": model[1].parameters()}], **words
    )
    for _ in range(2):
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (torch.optim.AdamW, {"lr": 0.1, "fused": True}),
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.Adagrad, {"lr": 0.1}),
        (torch.optim.RMSprop, {"lr": 0.1}),
    ],
)
def test_an_optimizer_s_state_comes_back_from_its_file(
    kind: type[torch.optim.Optimizer], words: dict[str, Any], tmp_path: Path
) -> None:
    _, optimizer = stepped(kind, **words)
    sharding.write_optimizer(optimizer, tmp_path, World())
    tensors = load_file(str(tmp_path / sharding.OPTIMIZER))  # which any reader of the format reads
    state = optimizer.state_dict()
    assert set(tensors) == {
        f"{place}.{name}"
        for place, values in state["state"].items()
        for name, value in values.items()
        if isinstance(value, torch.Tensor)
    }
    _, fresh = stepped(kind, **words)
    for group in fresh.param_groups:
        group["lr"] = 7.0
    fresh.state.clear()
    sharding.read_optimizer(fresh, tmp_path)
    found = fresh.state_dict()
    assert found["param_groups"] == [
        {**group, "betas": list(group["betas"])} if "betas" in group else group for group in state["param_groups"]
    ]
    torch.testing.assert_close(found["state"], state["state"])
