"""What the processes of one stage say to each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelines.protocols import World


def barrier(world: World) -> Callable[[], None]:
    """A function that waits until every process has called it."""

    def wait() -> None:
        if world.size > 1:
            import torch.distributed

            torch.distributed.barrier()

    return wait


def gather(world: World) -> Callable[[Any], list[Any]]:
    """A function that returns every process's picklable value, in the order of ranks."""

    def collect(value: Any) -> list[Any]:
        if world.size == 1:
            return [value]
        import torch.distributed

        values: list[Any] = [None] * world.size
        torch.distributed.all_gather_object(values, value)
        return values

    return collect
