"""What a run ran on, for its manifest: processor, memory, devices, and energy where the machine tells."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any, Literal

from pipelines.world import hosts


def processor_flags() -> set[str]:
    """Feature flags of the first processor (Linux on x86); empty elsewhere."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return set(line.partition(":")[2].split())
    except OSError:
        pass
    return set()


def processor_name() -> str:
    """The processor's marketing name, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def processes(asked: int | Literal["auto"]) -> int:
    """How many processes a stage runs on: as asked, or one per GPU and 1 on a CPU, on each host."""
    if asked != "auto":
        return int(asked)
    import torch

    return max(1, int(torch.cuda.device_count())) * hosts().count


def precision(asked: str) -> Literal["no", "bf16", "fp16"]:
    """`auto` resolved: bf16 where the hardware multiplies it natively, else no."""
    if asked != "auto":
        return asked  # type: ignore[return-value]
    import torch

    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no"
    return "bf16" if processor_flags() & {"avx512_bf16", "amx_bf16"} else "no"


def describe() -> dict[str, Any]:
    """Hardware as plain data."""
    import psutil
    import torch

    found: dict[str, Any] = {
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [],
    }
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            found["gpus"].append({"name": properties.name, "memory_bytes": properties.total_memory})
    return found


def energy_joules() -> float | None:
    """A counter of the energy used so far, where the machine tells (Intel and AMD RAPL, NVIDIA); None elsewhere."""
    total, told = 0.0, False
    for path in Path("/sys/class/powercap").glob("intel-rapl:?"):
        try:
            total += int((path / "energy_uj").read_text()) / 1e6
            told = True
        except (OSError, ValueError):
            continue
    try:
        import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            total += pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(index)) / 1e3
            told = True
    except Exception:  # an optional package, a driver that is absent or says no: there is no counter then
        pass
    return total if told else None
