"""Signals: a stop that saves first, and no orphans.

SIGINT and SIGTERM set `stop.requested`; where no step is being finished they end the work at once with Stopped, but
never within an import: who imports a library on trial takes any error for its absence, and torch cut short cannot be
imported again. A child process asks the kernel to be signalled when its parent dies, so that nothing outlives the
command."""

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
_IMPORT_POLL_SECONDS = 0.02
BY_SIGNAL = "stopped by "
"""How the sentence begins of what was ended at once, with nothing to go on with."""


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

    asked: list[int] = []
    """The signal that waits for the end of an import."""

    def ask(number: int, frame: FrameType | None) -> None:
        first = not stop.requested
        stop.requested = True
        if stop.depth == 0 and first:
            end(number, frame)

    def ask_again(number: int, frame: FrameType | None) -> None:
        waiting = asked.pop()
        if stop.depth == 0:  # what is deferred since then looks at `requested`
            end(waiting, frame)

    def end(number: int, frame: FrameType | None) -> None:
        if _within_import(frame):
            asked.append(number)
            signal.setitimer(signal.ITIMER_REAL, _IMPORT_POLL_SECONDS)
            return
        raise Stopped(f"{BY_SIGNAL}{signal.Signals(number).name}")

    handlers = {signal.SIGINT: ask, signal.SIGTERM: ask, signal.SIGALRM: ask_again}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _within_import(frame: FrameType | None) -> bool:
    """Whether what runs in that frame is a module that is being imported."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def die_with_parent(number: int = signal.SIGTERM, parent: int | None = None) -> None:
    """Have the kernel send `number` to this process when its parent ends. `parent` guards against a parent gone
    before."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)
