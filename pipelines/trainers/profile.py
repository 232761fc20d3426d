"""Where the time of a training stage goes: torch's profiler over a few of its steps, for `finery run --profile`.

The stage's folder then holds `trace.json.gz`, for Perfetto or chrome://tracing, and `profile.json`: the time of each
kind of operation and of the slowest operations, and the share of the machine's rate of matrix products. Only the first
process is watched. Watching slows the steps down a little, those of small models most.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers import TrainingArguments as LiveArguments

from pipelines.core.files import write_json
from pipelines.core.interfaces import PROFILE, Context, Precision
from pipelines.trainers.throughput import matrix_rate

BEFORE, WATCHED = 5, 10
"""Steps that are left out, for what is done once is done in them, and steps that are watched."""
SLOWEST = 30
"""Operations that are named one by one."""
KINDS = {
    "matrix products": r"aten::(mm|addmm|bmm|baddbmm|matmul|linear|mv|dot)|mkldnn.*linear|gemm|cutlass|cublas",
    "attention": r"attention|softmax|flash",
    "random numbers": r"dropout|bernoulli|random|rand|normal_|uniform_",
    "optimizer": r"Optimizer|_fused_adam|_foreach|adamw|addcmul|addcdiv|lerp",
    "normalisation": r"layer_norm|rms_norm|batch_norm",
    "gradient norm": r"norm(_|$)|vector_norm|clip",
    "losses": r"log_softmax|nll_loss|cross_entropy|logsumexp",
    "embeddings": r"embedding|index_select|gather|scatter|index",
    "casts and copies": r"copy|_to_copy|aten::to$|contiguous|clone|cat|memcpy",
    "clearing memory": r"zero|fill|memset",
    "communication": r"all_reduce|allreduce|gloo|nccl|c10d",
}
"""What an operation counts as, by what its name contains: the first that matches."""
OTHER, OUTSIDE = "elementwise and others", "outside of operations (Python, data, waiting)"


def kind_of(operation: str) -> str:
    """What an operation counts as."""
    losses = ("losses", KINDS["losses"])  # before attention, whose softmax they contain
    return next((kind for kind, pattern in (losses, *KINDS.items()) if re.search(pattern, operation)), OTHER)


def profiled(context: Context) -> list[TrainerCallback]:
    """What watches a stage where that is asked for."""
    asked = os.environ.get(PROFILE) == "1" and context.world.is_main
    return [Profile(context.folder, context.precision)] if asked else []


def threads(count: int) -> str:
    """`1 thread`, `2 threads`."""
    return "1 thread" if count == 1 else f"{count} threads"


class Profile(TrainerCallback):  # type: ignore[misc]
    """Watches a few steps of a stage and writes what it saw into `folder`."""

    def __init__(self, folder: Path, precision: Precision) -> None:
        self.folder = folder
        self.precision = precision
        self.profiler: torch.profiler.profile | None = None
        self.first = 0
        self.started = 0.0

    def on_train_begin(
        self, args: LiveArguments, state: TrainerState, control: TrainerControl, **keywords: object
    ) -> None:
        ahead = state.max_steps - state.global_step
        self.first = state.global_step + min(BEFORE, ahead // 3)
        if self.first == state.global_step:
            self._watch()

    def on_step_end(
        self, args: LiveArguments, state: TrainerState, control: TrainerControl, **keywords: object
    ) -> None:
        if self.profiler is None and state.global_step == self.first:
            self._watch()
        elif self.profiler is not None and state.global_step in (self.first + WATCHED, state.max_steps):
            self._finish(args.device, state.global_step - self.first)

    def on_train_end(
        self, args: LiveArguments, state: TrainerState, control: TrainerControl, **keywords: object
    ) -> None:
        if self.profiler is not None:  # stopped by a signal or for want of progress
            self._finish(args.device, state.global_step - self.first)

    def _watch(self) -> None:
        self.profiler = torch.profiler.profile(record_shapes=True, with_flops=True)
        self.profiler.start()
        self.started = time.perf_counter()

    def _finish(self, device: torch.device, steps: int) -> None:
        assert self.profiler is not None
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self.started
        profiler, self.profiler, self.first = self.profiler, None, -1
        profiler.stop()
        profiler.export_chrome_trace(str(self.folder / "trace.json.gz"))
        write_json(self.folder / "profile.json", self._summary(profiler, device, seconds, max(steps, 1)))

    def _summary(self, profiler: Any, device: torch.device, seconds: float, steps: int) -> dict[str, Any]:
        """Times in seconds a step; those of a GPU where there is one."""
        operations, flops = [], 0
        for event in profiler.key_averages():
            own = event.self_cpu_time_total if device.type == "cpu" else event.self_device_time_total
            flops += event.flops or 0
            if own > 0 and not event.key.startswith("ProfilerStep"):
                name = str(event.key)
                operations.append(
                    {"name": name, "kind": kind_of(name), "calls": event.count / steps, "seconds": own / 1e6 / steps}
                )
        operations.sort(key=lambda each: -each["seconds"])
        kinds: dict[str, float] = {}
        for each in operations:
            kinds[each["kind"]] = kinds.get(each["kind"], 0.0) + each["seconds"]
        step = seconds / steps
        kinds[OUTSIDE] = max(0.0, step - sum(kinds.values()))
        rate = matrix_rate(device, self.precision)
        return {
            "steps": steps,
            "seconds_per_step": step,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else threads(torch.get_num_threads()),
            "precision": self.precision,
            "flops_per_step": flops / steps,
            "matrix_rate": rate,
            "utilisation": flops / seconds / rate,
            "kinds": dict(sorted(kinds.items(), key=lambda pair: -pair[1])),
            "operations": operations[:SLOWEST],
        }
