"""What a job needs and what hosts have: GPUs by count, memory and kind, processor cores and memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Resources:
    """What each of `hosts` hosts must give, all at once or not at all."""

    gpus: int = 0
    """GPUs on each host."""
    gpu_memory: int = 0
    """Bytes that each GPU must have at least; 0 when any will do."""
    gpu_kind: str | None = None
    """Part of the GPU's name that must occur in it, upper or lower case, such as `h200`; None when any will do."""
    cpus: int = 1
    """Processor cores on each host."""
    memory: int = 0
    """Bytes of main memory on each host."""
    hosts: int = 1
    """How many hosts; above 1 the executor must be able to form a world over them."""

    def __post_init__(self) -> None:
        for name, least in (("gpus", 0), ("gpu_memory", 0), ("cpus", 0), ("memory", 0), ("hosts", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least {least}")

    @property
    def total_gpus(self) -> int:
        """GPUs over all hosts."""
        return self.gpus * self.hosts

    def suits(self, slot: Slot) -> bool:
        """Whether this GPU is of the asked kind and large enough."""
        return slot.memory >= self.gpu_memory and (self.gpu_kind is None or self.gpu_kind.lower() in slot.kind.lower())


@dataclass(frozen=True)
class Slot:
    """One GPU of a host."""

    index: int
    """Its number on the host, as CUDA_VISIBLE_DEVICES counts."""
    kind: str = ""
    memory: int = 0
    """Bytes."""
    uuid: str = ""


@dataclass(frozen=True)
class Host:
    """A machine that can run attempts."""

    name: str
    executor: str = "local"
    """Which executor reaches it."""
    cpus: int = 1
    """Processor cores that jobs may use."""
    memory: int = 0
    """Bytes that jobs may use."""
    slots: tuple[Slot, ...] = ()
    state: str = "up"
    """`up`, `draining` (nothing new starts here) or `down`."""
    seen: float = 0.0
    """When it last answered, in seconds since 1970."""
    info: dict[str, Any] = field(default_factory=dict)
    """What else is known: address, driver, versions."""


@dataclass(frozen=True)
class Part:
    """The share of one host in a placement."""

    host: str
    gpus: tuple[int, ...] = ()
    """Indices of the host's GPUs, ascending."""


Placement = tuple[Part, ...]
"""Where an attempt runs: one part for each of its hosts."""
