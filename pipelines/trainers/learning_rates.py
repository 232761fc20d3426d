"""The learning rates that a tuner asks for: one for each group of weights, over time, and none for what is still frozen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from pipelines.protocols import Tuner


def split_by_rate(optimizer: Optimizer, model: nn.Module, rates: Mapping[str, float]) -> None:
    """Split the optimizer's groups so that each weight learns at its own multiple of the learning rate.

    `rates` are multipliers by parameter name, 1 where none is given. Everything else that a group says (weight decay,
    and which weights have none) stays. Groups at the full rate come first: theirs is the rate that is logged. Called
    before the first step and before a schedule is made, which takes each group's rate as the one to begin from.
    """
    if not rates:
        return
    multiplier = {id(weight): rates.get(name, 1.0) for name, weight in model.named_parameters()}
    if unknown := sorted(set(rates) - {name for name, _ in model.named_parameters()}):
        raise ValueError(f"learning rates are given for weights that the model does not have: {', '.join(unknown[:3])}")
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        members: dict[float, list[Any]] = {}
        for weight in group["params"]:
            members.setdefault(multiplier[id(weight)], []).append(weight)
        groups += [group | {"params": weights, "lr": group["lr"] * rate} for rate, weights in members.items()]
    optimizer.param_groups = sorted(groups, key=lambda group: -group["lr"])


def schedule(optimizer: Optimizer, tuner: Tuner | None, steps: int) -> LambdaLR | None:
    """The tuner's own schedule over `steps` updates; None when it leaves that to `arguments`."""
    if tuner is None or tuner.factor(0, steps) is None:
        return None
    own = tuner

    def factor(step: int) -> float:
        found = own.factor(min(step, steps - 1), steps)
        assert found is not None
        return found

    return LambdaLR(optimizer, factor)
