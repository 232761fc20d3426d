"""How an attempt ended, and what follows for its job."""

from __future__ import annotations

from dataclasses import dataclass

from service.jobs.states import Reason
from service.jobs.transitions import Move


@dataclass(frozen=True)
class Ending:
    """What `Store.end_attempt` writes. `service.scheduler.retries.ending_of` makes one from an exit code."""

    move: Move
    """SUCCEED, FAIL or STOPPED. A job that is being paused or cancelled follows its own line of the table."""
    reason: Reason | None = None
    message: str = ""
    exit_code: int | None = None
    not_before: float = 0.0
    """With STOPPED: the end of the back-off, in seconds since 1970."""
    counts: bool = False
    """Whether this was one of the job's tries."""
    preempted: bool = False
    """Whether it gave way to a job of higher priority."""
