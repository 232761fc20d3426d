"""Signals: a stop that saves first, and no orphans.

SIGINT and SIGTERM set `stop.requested`; where no step is being finished they end the work at once with Stopped. A
child process asks the kernel to be signalled when its parent dies, so that nothing outlives the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from pipelines.core.errors import Stopped

_PR_SET_PDEATHSIG = 1


@dataclass
class StopSignal:
    """Whether SIGINT or SIGTERM asked this process to stop.

    A stage that can finish a step and save first wraps that part in `with stop.deferred():` and looks at `requested`
    between steps; anywhere else the signal raises Stopped at once.
    """

    requested: bool = False
    depth: int = 0

    def deferred(self) -> _Deferred:
        """Hold signals back inside the `with` block."""
        return _Deferred(self)


class _Deferred:
    def __init__(self, stop: StopSignal) -> None:
        self.stop = stop

    def __enter__(self) -> StopSignal:
        self.stop.depth += 1
        return self.stop

    def __exit__(self, *exception: object) -> None:
        self.stop.depth -= 1


@contextmanager
def stop_on_signals(stop: StopSignal) -> Iterator[StopSignal]:
    """Route SIGINT and SIGTERM to `stop` inside the `with` block (main thread only)."""

    def ask(number: int, frame: FrameType | None) -> None:
        first = not stop.requested
        stop.requested = True
        if stop.depth == 0 and first:
            raise Stopped(f"stopped by {signal.Signals(number).name}")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def die_with_parent(number: int = signal.SIGTERM, parent: int | None = None) -> None:
    """Have the kernel send `number` to this process when its parent ends. `parent` guards against a parent gone
    before."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)
