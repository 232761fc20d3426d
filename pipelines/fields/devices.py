"""How fast this machine is taken to be before anything is measured, found out without torch.

The rates are what training reaches, not what data sheets promise: a core's was measured with Finery's trainer (four
layers of width 256, batches of 32, on two cores with AVX-512), a GPU's is a share of its data sheet's peak.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple

CORE = {"no": 50e9, "bf16": 80e9}
"""FLOP/s that training reaches on one core with AVX-512, by precision. Measured; see the module's docstring."""
PLAIN_CORE = 25e9
"""FLOP/s of a core without AVX-512. Assumed: half as wide."""
GPU_SHARE = 0.3
"""Share of the peak that training reaches. Assumed; small models, whose kernels are short, reach less."""

GPUS: dict[str, tuple[float, float]] = {
    "B200": (2250e12, 80e12),
    "H200": (989e12, 67e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "L40S": (362e12, 91.6e12),
    "L4": (121e12, 30.3e12),
    "A10": (125e12, 31.2e12),
    "A40": (150e12, 37.4e12),
    "A6000": (155e12, 38.7e12),
    "V100": (125e12, 15.7e12),
    "T4": (65e12, 8.1e12),
    "RTX 4090": (165e12, 82.6e12),
    "RTX 3090": (71e12, 35.6e12),
}
"""Peak FLOP/s in 16 bits (dense) and in float32, by what a GPU's name contains. From NVIDIA's data sheets."""
OLD_GPUS = ("V100", "T4")
"""GPUs without bfloat16."""
UNKNOWN_GPU = (100e12, 20e12)
"""For a GPU that is not in the table."""

MEASURED = "what training reached on such cores in a measurement; --flops-per-second sets another rate"
ASSUMED = f"assumed, {GPU_SHARE:.0%} of the data sheet's peak; --flops-per-second sets another rate"
"""Where a rate comes from, for the reader of a plan."""


class Device(NamedTuple):
    """What a run will compute on."""

    name: str
    kind: Literal["cpu", "gpu"]
    units: int
    """GPUs, or cores."""
    precision: Literal["no", "bf16"]
    """What `mixed_precision: auto` becomes on it."""
    rates: dict[str, float]
    """FLOP/s of one GPU or of one core, by precision."""

    def flops_per_second(self, precision: str, processes: int) -> float:
        """What `processes` together reach: they share the cores, but have a GPU each."""
        rate = self.rates["no" if precision == "no" else "bf16"]
        return rate * (min(processes, self.units) if self.kind == "gpu" else self.units)


def this_machine(proc: Path = Path("/proc"), visible: str | None = None) -> Device:
    """The GPUs that the NVIDIA driver lists and CUDA_VISIBLE_DEVICES leaves, else the processor."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    names = _gpus(proc)
    if visible is not None:
        asked = [each for each in visible.split(",") if each.strip() not in ("", "-1")]
        names = names[: len(asked)]
    if names:
        return gpu(names[0], len(names))
    flags = _flags(proc)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    native = bool(flags & {"avx512_bf16", "amx_bf16"})
    plain = CORE["no"] if "avx512f" in flags else PLAIN_CORE
    rates = {"no": plain, "bf16": CORE["bf16"] if native else plain}
    return Device(f"{cores} CPU core{'s' if cores > 1 else ''}", "cpu", cores, "bf16" if native else "no", rates)


def gpu(name: str, count: int) -> Device:
    """A GPU by its name, as far as the table knows it."""
    half, single = next((peaks for part, peaks in GPUS.items() if part in name), UNKNOWN_GPU)
    precision: Literal["no", "bf16"] = "no" if any(part in name for part in OLD_GPUS) else "bf16"
    return Device(f"{count} x {name}", "gpu", count, precision, {"no": GPU_SHARE * single, "bf16": GPU_SHARE * half})


def _gpus(proc: Path) -> list[str]:
    names = []
    for file in sorted(proc.glob("driver/nvidia/gpus/*/information")):
        for line in file.read_text().splitlines():
            if line.startswith("Model:"):
                names.append(line.partition(":")[2].strip())
    return names


def _flags(proc: Path) -> set[str]:
    try:
        lines = (proc / "cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())
