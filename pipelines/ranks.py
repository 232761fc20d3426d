"""What the processes of one stage say to each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
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


class Heartbeat:
    """Signs of life of one process, as times of change of two files: `RANK` while it runs, `RANK.step` when it moves on.

    A process that hangs in a collective call is alive and does not move on; one that was frozen does neither.
    """

    FOLDER = "heartbeats"
    SECONDS = 5.0

    def __init__(self, run_folder: Path, rank: int) -> None:
        self._alive = run_folder / self.FOLDER / str(rank)
        self._step = self._alive.with_suffix(".step")
        self._stepped = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._touch(self._step)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        for path in (self._alive, self._step):
            path.unlink(missing_ok=True)

    def step(self) -> None:
        """The process moved on; writes at most once a second."""
        now = time.monotonic()
        if now - self._stepped >= 1.0:
            self._stepped = now
            self._touch(self._step)

    def _beat(self) -> None:
        while True:
            self._touch(self._alive)
            if self._stop.wait(self.SECONDS):
                return

    @staticmethod
    def _touch(path: Path) -> None:
        try:
            path.parent.mkdir(exist_ok=True)
            path.touch()
        except OSError:  # a full disk ends no training
            return
