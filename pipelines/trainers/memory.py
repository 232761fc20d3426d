"""Peak memory of a stage: the device's where there is one, else the process's resident memory."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch


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
