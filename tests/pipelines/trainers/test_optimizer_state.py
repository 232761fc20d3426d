"""What a checkpoint says of an optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from pipelines.core.interfaces import World
from pipelines.trainers import optimizer_state


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
    optimizer_state.write_optimizer(optimizer, tmp_path, World())
    tensors = load_file(str(tmp_path / optimizer_state.OPTIMIZER))  # which any reader of the format reads
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
    optimizer_state.read_optimizer(fresh, tmp_path)
    found = fresh.state_dict()
    assert found["param_groups"] == [
        {**group, "betas": list(group["betas"])} if "betas" in group else group for group in state["param_groups"]
    ]
    torch.testing.assert_close(found["state"], state["state"])
