"""How fast a stage trains and how much memory that takes.

Speed is tokens a second, and the share of the machine's rate of matrix products that they reach (utilisation).

Tokens are those that a model reads, padding left out. The time is that of steps: data, forward, backward and update,
without evaluation and checkpoints. Utilisation is the operations of matrix products that one step really did (those
that checkpointing repeats too), counted once by torch and taken per place of its batch, padding with it, times places a
second, over the rate that products of large square matrices reach here in the precision of the stage. It is measured
for stages that train for longer than `SETTLED`.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pipelines.core.interfaces import Gather, Precision

SETTLED = 10.0
"""Seconds of steps before operations are counted and the machine's rate is measured."""
SIDES = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrices whose products tell the machine's rate."""
ROUNDS = 5
TYPES: dict[Precision, torch.dtype] = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def tokens_of(inputs: Any, padded: bool = False) -> Tensor | int:
    """Tokens of a batch that are no padding, over all its texts: whatever ends with `input_ids`, with its mask.

    `padded` counts padding too. None in batches that hold no ids, such as the prompts of policy optimisation.
    """
    total: Tensor | int = 0
    if not isinstance(inputs, Mapping):
        return total
    for name, value in inputs.items():
        if isinstance(value, Mapping):
            total = total + tokens_of(value, padded)
        elif name.endswith("input_ids") and isinstance(value, Tensor):
            mask = inputs.get(name.removesuffix("input_ids") + "attention_mask")
            whole = padded or not isinstance(mask, Tensor) or mask.shape != value.shape
            total = total + (value.numel() if whole else mask.sum())
    return total


def matrix_rate(device: torch.device, precision: Precision) -> float:
    """FLOP/s of the product of two square matrices, the best of five."""
    side = SIDES.get(device.type, SIDES["cuda"])
    generator = torch.Generator(device).manual_seed(0)  # the global one belongs to the training
    matrix = torch.randn(side, side, generator=generator, device=device).to(TYPES[precision])
    seconds = []
    for _ in range(ROUNDS + 1):  # the first one warms up
        started = time.perf_counter()
        product = matrix @ matrix
        product[0, 0].item()  # waits for the device
        seconds.append(time.perf_counter() - started)
    return 2 * side**3 / min(seconds[1:])


def reset_peak_memory() -> None:
    """Forget earlier peaks, so that a stage reports its own."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:  # not Linux, or not allowed: the peak then covers the whole process
            return


def peak_memory() -> int:
    """Bytes at the peak since the last reset."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Throughput:
    """The speed of one stage, since the last log and in all. Tokens and seconds are those of this process."""

    def __init__(self, precision: Precision, gather: Gather) -> None:
        self.precision = precision
        self.gather = gather
        self.flops_per_place: float | None = None
        self.rate = 0.0
        """FLOP/s that this process's device reaches in matrix products."""
        self.tokens: Tensor | int = 0
        self.places = 0
        """Tokens and padding."""
        self.seconds = 0.0
        self.logged = (0, 0, 0.0)
        """Tokens, places and seconds at the last log."""
        self.latest: dict[str, float] = {}
        """`tokens_per_second` of all processes, and `utilisation` where it is known, between the last two logs."""
        self.since: float | None = None
        self.counts = False
        """Whether the operations of this micro-batch are being counted."""

    @contextmanager
    def step(self, inputs: Any, device: torch.device, compiled: bool) -> Iterator[None]:
        """Count a micro-batch's tokens and, once, what its matrix products cost; a compiled model hides them."""
        if self.since is None:
            self.since = time.monotonic()
        self.tokens = self.tokens + tokens_of(inputs)
        here = int(tokens_of(inputs, padded=True))
        self.places += here
        if self.flops_per_place is not None or compiled or self.seconds < SETTLED or not here:
            yield
            return
        self.counts = True
        with FlopCounterMode(display=False) as counter:
            yield
        self.counts = False
        self.flops_per_place = counter.get_total_flops() / here
        started = time.monotonic()
        self.rate = matrix_rate(device, self.precision)
        self.since += time.monotonic() - started

    def pause(self) -> None:
        """A step is over, and what follows it (logs, evaluation, checkpoints) is not counted."""
        if self.since is not None:
            self.seconds += time.monotonic() - self.since
            self.since = None

    def resume(self) -> None:
        """The next step begins."""
        self.since = time.monotonic()

    def measure(self) -> None:
        """Set `latest`. Called on every process, at a log."""
        tokens, places, seconds = int(self.tokens), self.places, self.seconds
        since = (tokens - self.logged[0], places - self.logged[1], seconds - self.logged[2])
        self.logged = (tokens, places, seconds)
        self.latest = self._speed(*since)

    def total(self) -> dict[str, float]:
        """The same over all steps of this process's life. Called on every process."""
        return self._speed(int(self.tokens), self.places, self.seconds)

    def _speed(self, tokens: int, places: int, seconds: float) -> dict[str, float]:
        everywhere = self.gather(tokens)
        if seconds <= 0 or not sum(everywhere):
            return {}
        speed = {"tokens_per_second": round(sum(everywhere) / seconds, 1)}
        known = self.gather((self.flops_per_place, places, self.rate))
        if all(flops is not None and rate > 0 for flops, _, rate in known):
            shares = [flops * own / seconds / rate for flops, own, rate in known]
            speed["utilisation"] = round(sum(shares) / len(shares), 4)
        return speed
