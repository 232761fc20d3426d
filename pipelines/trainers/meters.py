"""Means that a loss tells beside its sum: over the items since the last log while training, over all of them while evaluating."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

TRAINING, EVALUATION = "train", "eval"


class Meter:
    """Sums and counts by name. They stay on the device until they are asked for, and belong to every checkpoint."""

    def __init__(self) -> None:
        self.totals: dict[str, dict[str, Tensor]] = {TRAINING: {}, EVALUATION: {}}
        """(sum, count) of each name (2,)."""

    def add(self, training: bool, values: Mapping[str, Tensor]) -> None:
        """Take in values of any shape, one entry an item; `training`: whether the model learns from them."""
        kept = self.totals[TRAINING if training else EVALUATION]
        for name, value in values.items():
            exact = value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64)
            both = torch.stack([exact.sum(), exact.new_tensor(float(exact.numel()))])
            kept[name] = kept[name] + both if name in kept else both

    def take(self, training: bool, gather: Callable[[Any], list[Any]] = lambda value: [value]) -> dict[str, float]:
        """The means over the items of every process since they were last taken. Called on every process."""
        which = TRAINING if training else EVALUATION
        told, self.totals[which] = {name: both.tolist() for name, both in self.totals[which].items()}, {}
        total: dict[str, list[float]] = {}
        for process in gather(told):
            for name, (value, count) in process.items():
                had = total.setdefault(name, [0.0, 0.0])
                total[name] = [had[0] + value, had[1] + count]
        return {name: value / count for name, (value, count) in total.items() if count}

    def state(self) -> dict[str, list[float]]:
        """What has gathered while training, as JSON."""
        return {name: both.tolist() for name, both in self.totals[TRAINING].items()}

    def restore(self, state: Mapping[str, list[float]], device: Any) -> None:
        """Take back what `state` gave."""
        kind = torch.float32 if torch.device(device).type == "mps" else torch.float64
        self.totals[TRAINING] = {name: torch.tensor(both, dtype=kind, device=device) for name, both in state.items()}
