"""The machine: what a run ran on, and how fast it is taken to be before anything is measured.

`describe` is for the manifest; `this_machine` is for plans and finds out without torch. The rates are what training
reaches, not what data sheets promise: a core's was measured with Finery's trainer (four layers of width 256, batches of
32, on two cores with AVX-512), a GPU's is a share of its data sheet's peak.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pipelines.core.interfaces import Precision
from pipelines.core.launch import NATIVE_BF16, faster_in_bf16, lacking_deepspeed, processor, processor_flags
from pipelines.runs.distributed import cores, hosts


def processor_name() -> str:
    """The processor's marketing name, as far as the system tells."""
    return processor("model name") or platform.processor() or platform.machine()


def processes(num_processes: int | Literal["auto"]) -> int:
    """How many processes a stage runs on: as asked, or one per GPU and 1 on a CPU, on each host."""
    if num_processes != "auto":
        return int(num_processes)
    import torch

    return max(1, int(torch.cuda.device_count())) * hosts().count


def lacking_for_deepspeed() -> str | None:
    """What DeepSpeed needs that this machine has not got, completing `the profile zero3 …`; None where it has all."""
    if (why := lacking_deepspeed()) is not None:
        return why
    import torch

    return (
        None if torch.cuda.is_available() else "needs GPUs, and none is to be seen here; use the profile fsdp2 or ddp"
    )


def precision(mixed_precision: Precision | Literal["auto"]) -> Precision:
    """`auto` resolved: bf16 where the hardware is faster in it, else no."""
    if mixed_precision != "auto":
        return mixed_precision
    import torch

    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no"
    return "bf16" if faster_in_bf16() else "no"


def doubts(precision: Precision, proc: Path = Path("/proc")) -> list[str]:
    """One sentence where a precision is slow here: bf16 on a processor that is known to be faster in float32."""
    import torch

    flags = processor_flags(proc)
    if precision != "bf16" or not flags or torch.cuda.is_available() or faster_in_bf16(proc):
        return []
    if flags & NATIVE_BF16:
        return [
            "launch.mixed_precision is bf16, which this processor multiplies, but without AMX: a step took 1.3 to 1.6 "
            "times as long as in float32 where it was measured; write auto or no, unless it is memory that is short"
        ]
    return [
        "launch.mixed_precision is bf16, which this processor does not multiply itself: a step can take ten times as "
        "long as in float32; write auto, which takes what the hardware has, or no"
    ]


def describe() -> dict[str, Any]:
    """Hardware as plain data."""
    import psutil
    import torch

    description: dict[str, Any] = {
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [],
    }
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            description["gpus"].append({"name": properties.name, "memory_bytes": properties.total_memory})
    return description


ROOM = 0.85
"""The share of free memory that a plan may fill: allocators leave gaps, and a plan knows no library's own buffers."""


def free_memory(processes: int) -> int:
    """Bytes that each of so many processes on this host may still take, of its GPU or of the host."""
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    import psutil

    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # no control group, or no limit in it
        free = min(free, int((CGROUP / "memory.max").read_text()) - int((CGROUP / "memory.current").read_text()))
    return free // processes


CGROUP = Path("/sys/fs/cgroup")
"""The control group of a container, as it sees itself."""


class EnergyCounter(NamedTuple):
    """A device's own count of the energy that it used."""

    joules: float
    starts_anew: float
    """Joules at which it begins at 0 again."""


def energy_counters(powercap: Path = Path("/sys/class/powercap")) -> dict[str, EnergyCounter]:
    """The counters that can be read, by name: packages of Intel's and AMD's processors (RAPL), GPUs of NVIDIA (NVML).

    They count all that runs on the machine. Empty where the machine does not tell, as in most virtual machines, and
    where its GPUs do not: the processors alone would be taken for the whole.
    """
    counters: dict[str, EnergyCounter] = {}
    for path in sorted(powercap.glob("intel-rapl:?")):
        with suppress(OSError, ValueError):  # newer kernels let root alone read it
            joules, largest = (int((path / name).read_text()) / 1e6 for name in ("energy_uj", "max_energy_range_uj"))
            counters[f"RAPL {path.name.partition(':')[2]}"] = EnergyCounter(joules, largest)
    try:
        import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            millijoules = pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(index))
            counters[f"NVML {index}"] = EnergyCounter(millijoules / 1e3, 2.0**64 / 1e3)
    except Exception:  # an optional package, a driver that is absent or says no: there is no counter then
        import torch

        return {} if torch.cuda.is_available() else counters
    return counters


def energy_since(before: Mapping[str, EnergyCounter], now: Mapping[str, EnergyCounter]) -> float | None:
    """Joules that the counters of both readings counted between them; None without any. A counter that began anew did
    so once."""
    spent = [
        (now[name].joules - counter.joules) % counter.starts_anew for name, counter in before.items() if name in now
    ]
    return sum(spent) if spent else None


CORE = {"no": 50e9, "bf16": 80e9}
"""FLOP/s that training reaches on one core with AVX-512, by precision. Measured; see the module's docstring."""
WITHOUT_AMX = 1.5
"""How many times as long a step in bfloat16 takes as in float32 on Intel's cores without AMX. Measured: decision 25."""
PLAIN_CORE = 25e9
"""FLOP/s of a core without AVX-512. Assumed: half as wide."""
GPU_SHARE = 0.3
"""Share of the peak that training reaches. Assumed; small models, whose kernels are short, reach less."""


class GpuFacts(NamedTuple):
    """Of NVIDIA's data sheets."""

    half: float
    """Peak FLOP/s in 16 bits, dense."""
    single: float
    """Peak FLOP/s in float32."""
    memory: float
    """Bytes, of the largest one."""
    link: float
    """Bytes a second to the other GPUs of a host, one way: NVLink, else PCI Express with 16 lanes."""


GPUS = {
    "B200": GpuFacts(2250e12, 80e12, 180e9, 900e9),
    "H200": GpuFacts(989e12, 67e12, 141e9, 450e9),
    "H100": GpuFacts(989e12, 67e12, 80e9, 450e9),
    "A100": GpuFacts(312e12, 19.5e12, 80e9, 300e9),
    "L40S": GpuFacts(362e12, 91.6e12, 48e9, 32e9),
    "L4": GpuFacts(121e12, 30.3e12, 24e9, 32e9),
    "A10": GpuFacts(125e12, 31.2e12, 24e9, 32e9),
    "A40": GpuFacts(150e12, 37.4e12, 48e9, 32e9),
    "A6000": GpuFacts(155e12, 38.7e12, 48e9, 32e9),
    "V100": GpuFacts(125e12, 15.7e12, 32e9, 150e9),
    "T4": GpuFacts(65e12, 8.1e12, 16e9, 16e9),
    "RTX 4090": GpuFacts(165e12, 82.6e12, 24e9, 32e9),
    "RTX 3090": GpuFacts(71e12, 35.6e12, 24e9, 32e9),
}
"""By what a GPU's name contains."""
OLD_GPUS = ("V100", "T4")
"""GPUs without bfloat16."""
UNKNOWN_GPU = GpuFacts(100e12, 20e12, 24e9, 32e9)
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
        indices = [each for each in visible.split(",") if each.strip() not in ("", "-1")]
        names = names[: len(indices)]
    if names:
        return gpu(names[0], len(names))
    flags, count = processor_flags(proc), cores()
    faster = faster_in_bf16(proc)
    plain = CORE["no"] if "avx512f" in flags else PLAIN_CORE
    half = CORE["bf16"] if faster else plain / WITHOUT_AMX if flags & NATIVE_BF16 else plain
    name = f"{count} CPU core{'s' if count > 1 else ''}"
    return Device(name, "cpu", count, "bf16" if faster else "no", {"no": plain, "bf16": half})


def gpu(name: str, count: int) -> Device:
    """A GPU by its name, as far as the table knows it."""
    half, single, _, _ = next((facts for part, facts in GPUS.items() if part in name), UNKNOWN_GPU)
    precision: Literal["no", "bf16"] = "no" if any(part in name for part in OLD_GPUS) else "bf16"
    return Device(f"{count} x {name}", "gpu", count, precision, {"no": GPU_SHARE * single, "bf16": GPU_SHARE * half})


def _gpus(proc: Path) -> list[str]:
    names = []
    for file in sorted(proc.glob("driver/nvidia/gpus/*/information")):
        for line in file.read_text().splitlines():
            if line.startswith("Model:"):
                names.append(line.partition(":")[2].strip())
    return names
