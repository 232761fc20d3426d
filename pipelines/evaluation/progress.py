"""How far predicting is, as events: a few a second at most, from one process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.evaluation.predict import Progress
    from pipelines.protocols import Context

EVERY = 0.5
"""Seconds between two events."""


def progress_events(context: Context, what: str) -> Progress | None:
    """A `progress(done, total)` that emits `progress` events; None on the processes that write none."""
    if not context.world.is_main:
        return None
    last = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= total or now - last >= EVERY:
            last = now
            context.events.emit("progress", step=done, total=total, what=what)

    return progress
