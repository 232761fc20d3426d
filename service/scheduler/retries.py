"""What follows when an attempt ends: done, failed for good, or again after a while. Decided by the reason."""

from __future__ import annotations

import random as randomness
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from pipelines.core.errors import EXIT_DONE, EXIT_STOPPED, EXIT_USAGE
from service.jobs.job import Attempt, Job
from service.jobs.states import AttemptState, Ending, Move, Reason, State


@dataclass(frozen=True)
class Policy:
    """How a reason is answered."""

    retries: int
    """How often at most it is tried again; the job's own limit counts too."""
    first: float = 0.0
    """Seconds before the first of these."""
    counts: bool = True
    """Whether it uses up one of the job's tries."""


FOR_EVER = 1_000_000
POLICIES: dict[Reason, Policy] = {
    Reason.BAD_RECIPE: Policy(retries=0),
    Reason.DIVERGED: Policy(retries=0),
    Reason.DATA_ERROR: Policy(retries=0),
    Reason.NO_RESOURCES: Policy(retries=0),
    # the user decides whether it may go on
    Reason.TIME_LIMIT: Policy(retries=0),
    # the user deletes something first
    Reason.DISK_QUOTA: Policy(retries=0),
    # the same batch on the same device runs out again
    Reason.OUT_OF_MEMORY: Policy(retries=0),
    # not the job's fault
    Reason.PREEMPTED: Policy(retries=FOR_EVER, counts=False),
    Reason.NODE_LOST: Policy(retries=20, first=2.0, counts=False),
    # as often as the job says
    Reason.INTERNAL: Policy(retries=FOR_EVER, first=10.0),
    Reason.STALLED: Policy(retries=FOR_EVER, first=10.0),
}
LONGEST = 600.0
"""Seconds of the longest back-off."""
AGAIN = 2.0
"""Seconds before a job is started again that stopped by itself twice in a row."""


def ending_of(
    job: Job,
    *,
    exit_code: int | None,
    reason: Reason | None = None,
    message: str = "",
    now: float,
    random: Callable[[], float] = randomness.random,
    losses: int = 0,
    stops: int = 0,
) -> Ending:
    """What to write for an attempt that ended with this exit code (None: it vanished), for this reason if one is known.

    `losses` and `stops` are how many attempts in a row were lost, or stopped by themselves, just before
    (`losses_in_a_row`, `stops_in_a_row`); `random` gives numbers from 0 to 1 for the jitter.
    """
    if exit_code == EXIT_DONE:
        return Ending(Move.SUCCEED, exit_code=EXIT_DONE)
    preempted = job.state is State.RECOVERING and job.reason is Reason.PREEMPTED
    if reason is None and exit_code == EXIT_STOPPED:
        unasked = not preempted and job.state in (State.STARTING, State.RUNNING)
        waits = now + back_off(AGAIN, stops - 1, random()) if unasked and stops else 0.0
        return Ending(
            Move.STOPPED,
            Reason.PREEMPTED if preempted else None,
            message,
            exit_code,
            not_before=waits,
            preempted=preempted,
        )
    if reason is None:
        reason = (
            Reason.BAD_RECIPE if exit_code == EXIT_USAGE else Reason.NODE_LOST if exit_code is None else Reason.INTERNAL
        )
    policy = POLICIES[reason]
    allowed = min(policy.retries, job.request.max_retries) if policy.counts else policy.retries
    tried = job.retries if policy.counts else losses
    if tried >= allowed:
        return Ending(Move.FAIL, reason, message, exit_code, counts=policy.counts)
    return Ending(
        Move.STOPPED,
        reason,
        message,
        exit_code,
        not_before=now + back_off(policy.first, tried, random()),
        counts=policy.counts,
        preempted=reason is Reason.PREEMPTED,
    )


def losses_in_a_row(attempts: Sequence[Attempt]) -> int:
    """How many of a job's newest attempts that have ended were lost, one after the other."""
    ended = [attempt for attempt in attempts if attempt.state is AttemptState.ENDED]
    return sum(1 for _ in takewhile(lambda attempt: attempt.reason is Reason.NODE_LOST, reversed(ended)))


def stops_in_a_row(attempts: Sequence[Attempt]) -> int:
    """How many of a job's newest attempts stopped soon and by themselves, one after the other: what they need may
    be away."""
    ended = [attempt for attempt in attempts if attempt.state is AttemptState.ENDED]
    return sum(1 for _ in takewhile(_stopped_soon, reversed(ended)))


def _stopped_soon(attempt: Attempt) -> bool:
    lasted = (attempt.ended or attempt.created) - attempt.created
    return attempt.exit_code == EXIT_STOPPED and attempt.reason is None and lasted < LONGEST


def back_off(first: float, tried: int, jitter: float) -> float:
    """Seconds to wait: doubled with each try, and anywhere from half of it to all, so that jobs do not return together.

    "Equal jitter" of Brooker 2015, aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter.
    """
    longest = min(LONGEST, first * 2.0 ** min(tried, 30))
    return longest / 2 + jitter * longest / 2
