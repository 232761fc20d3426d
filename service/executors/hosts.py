"""What this machine has: processor cores, memory and GPUs, found without loading torch."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

from pipelines.core.errors import CommandError
from service.executors.protocol import Gpu, HostCapacity, Placement

_MIB = 1 << 20


def this_host(cpus: int | None = None, memory: int | None = None, gpus: str | None = None) -> HostCapacity:
    """This machine, or the part of it that the arguments allow. `gpus` is `0,1`, empty for none. Raises
    CommandError."""
    present = gpus_here()
    if gpus is not None:
        present = chosen(present, gpus)
    return HostCapacity(socket.gethostname(), cpus or cores_here(), memory or memory_here(), present)


RESERVE = 0.05
"""Of a host's memory, at least a gigabyte: what the system and the service keep."""
LEAST_SHARE = 8 << 30
"""Bytes that an attempt may take in any case, as far as the host has them: small jobs on many cores need more than
their cores' share."""


def memory_limit(host: HostCapacity, here: Placement | None, setting: int | None, least: int = LEAST_SHARE) -> int:
    """Bytes that an attempt may take: as its job names, else as the setting does, else its share of the host by GPUs
    or cores, and `least` in any case.

    0 is no limit.
    """
    if here is not None and here.memory:
        return here.memory
    if setting is not None or not host.memory:
        return setting or 0
    usable = host.memory - max(1 << 30, int(host.memory * RESERVE))
    if here is None or usable <= least:
        return max(usable, host.memory // 2)
    share = max(len(here.gpus) / len(host.gpus) if host.gpus else 0.0, here.cpus / max(host.cpus, 1))
    return max(int(usable * min(share, 1.0)), least)


def cores_here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_here() -> int:
    """Bytes of main memory: the machine's, or the container's when that is less."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            sizes.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # no such controller, or `max`
            continue
    return min(sizes)


def gpus_here() -> tuple[Gpu, ...]:
    """NVIDIA GPUs as the driver's own tool tells them, those in CUDA_VISIBLE_DEVICES when that is set."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        answer = subprocess.run(
            (tool, "--query-gpu=index,memory.total,name", "--format=csv,noheader,nounits"),
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    gpus = parse_gpus(answer.stdout)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    wanted = {word.strip() for word in visible.split(",")}
    return tuple(gpu for gpu in gpus if str(gpu.index) in wanted)


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """The lines `0, 143771, NVIDIA H200` as values; a line that says something else is left out."""
    gpus = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",", 2)]
        if len(words) == 3 and words[0].isdigit() and words[1].isdigit():
            gpus.append(Gpu(int(words[0]), int(words[1]) * _MIB, words[2]))
    return tuple(gpus)


def chosen(gpus: tuple[Gpu, ...], wanted: str) -> tuple[Gpu, ...]:
    """Those of the GPUs whose indices are written as `0,1`. Raises CommandError for one that is not there."""
    words = [word.strip() for word in wanted.split(",") if word.strip()]
    by_index = {str(gpu.index): gpu for gpu in gpus}
    unknown = [word for word in words if word not in by_index]
    if unknown:
        raise CommandError(
            f"--gpus names {', '.join(unknown)}, but this machine has {', '.join(by_index) or 'no GPU'}; name some "
            "of these"
        )
    return tuple(by_index[word] for word in dict.fromkeys(words))
