"""The states of a job and of an attempt, the one table of transitions, and how an attempt ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pipelines.core.errors import FineryError


class State(StrEnum):
    """Where a job stands. Only `service.jobs.states` says how it moves."""

    QUEUED = "queued"
    """Waits for resources, for a job it depends on, or for the end of a back-off."""
    STARTING = "starting"
    """Has its resources; its process is being started and has not written an event yet."""
    RUNNING = "running"
    """Its process writes events."""
    RECOVERING = "recovering"
    """Its attempt is lost or preempted; once that is proven to have ended the job goes back into the queue."""
    PAUSING = "pausing"
    """Asked to save a checkpoint and stop."""
    PAUSED = "paused"
    """Holds no resources until it is resumed."""
    CANCELLING = "cancelling"
    """Asked to stop for good."""
    CANCELLED = "cancelled"
    """Stopped for good by a user."""
    SUCCEEDED = "succeeded"
    """Every stage is complete and what was to be published is published."""
    FAILED = "failed"
    """Ended with an error; the reason and a sentence stand beside the state."""


TERMINAL = frozenset({State.CANCELLED, State.SUCCEEDED, State.FAILED})
"""A job here moves again only when a user retries it."""
ACTIVE = frozenset({State.STARTING, State.RUNNING, State.RECOVERING, State.PAUSING, State.CANCELLING})
"""A job here holds resources: it has an attempt that has not been proven to have ended."""
STOPPING = frozenset({State.RECOVERING, State.PAUSING, State.CANCELLING})
"""A job here wants its attempt to stop."""


class Reason(StrEnum):
    """Why a job failed, or why an attempt ended early."""

    BAD_RECIPE = "bad_recipe"
    """The recipe asks for something that cannot be; the same recipe will fail again."""
    OUT_OF_MEMORY = "out_of_memory"
    """The device or the host ran out of memory."""
    NO_RESOURCES = "no_resources"
    """No host could ever give what the job needs, its deadline passed, or a job it depends on did not succeed."""
    PREEMPTED = "preempted"
    """A job of higher priority took its place; it goes back into the queue."""
    DIVERGED = "diverged"
    """The loss is no longer a finite number."""
    DATA_ERROR = "data_error"
    """A data set, split, column or label is missing or unreadable."""
    NODE_LOST = "node_lost"
    """The host, or the process, vanished without an answer."""
    TIME_LIMIT = "time_limit"
    """It ran for as long as it may."""
    STALLED = "stalled"
    """Nothing was heard of it for too long."""
    DISK_QUOTA = "disk_quota"
    """Its project keeps more on the disk than it may."""
    INTERNAL = "internal"
    """Anything else; the log has the trace."""


class AttemptState(StrEnum):
    """Where one attempt at a job stands."""

    ASSIGNED = "assigned"
    """The scheduler gave it a place; no process is known yet."""
    STARTED = "started"
    """The executor gave a handle for it."""
    ENDED = "ended"
    """Its process is proven to have ended; its place is free."""


class Move(StrEnum):
    """What happened to a job, or what a user asked for."""

    START = "start"
    """The scheduler gave it resources and a new attempt."""
    RUN = "run"
    """The attempt wrote its first event."""
    SUCCEED = "succeed"
    """The attempt ended with success."""
    FAIL = "fail"
    """The attempt, or the waiting, ended with an error that is not tried again."""
    LOSE = "lose"
    """Nobody answers for the attempt; it may still be alive."""
    PREEMPT = "preempt"
    """The scheduler wants its resources for a job of higher priority."""
    STOPPED = "stopped"
    """The attempt is proven to have ended and the job can go on later: from a checkpoint, or anew."""
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    RETRY = "retry"


class IllegalTransition(FineryError):
    """The job's state does not allow this move."""

    reason = "illegal_transition"

    def __init__(self, state: State, move: Move) -> None:
        self.state = state
        self.move = move
        able = [str(other) for other in State if (other, move) in TABLE]
        super().__init__(
            f"the job is {state}; '{move}' is possible when it is "
            f"{', '.join(able[:-1])}{' or ' if able[1:] else ''}{able[-1]}"
        )


TABLE: dict[tuple[State, Move], State] = {
    (State.QUEUED, Move.START): State.STARTING,
    (State.QUEUED, Move.FAIL): State.FAILED,
    (State.QUEUED, Move.PAUSE): State.PAUSED,
    (State.QUEUED, Move.CANCEL): State.CANCELLED,
    #
    (State.STARTING, Move.RUN): State.RUNNING,
    (State.STARTING, Move.SUCCEED): State.SUCCEEDED,
    (State.STARTING, Move.FAIL): State.FAILED,
    (State.STARTING, Move.LOSE): State.RECOVERING,
    (State.STARTING, Move.PREEMPT): State.RECOVERING,
    (State.STARTING, Move.STOPPED): State.QUEUED,
    (State.STARTING, Move.PAUSE): State.PAUSING,
    (State.STARTING, Move.CANCEL): State.CANCELLING,
    #
    (State.RUNNING, Move.SUCCEED): State.SUCCEEDED,
    (State.RUNNING, Move.FAIL): State.FAILED,
    (State.RUNNING, Move.LOSE): State.RECOVERING,
    (State.RUNNING, Move.PREEMPT): State.RECOVERING,
    (State.RUNNING, Move.STOPPED): State.QUEUED,
    (State.RUNNING, Move.PAUSE): State.PAUSING,
    (State.RUNNING, Move.CANCEL): State.CANCELLING,
    # it may have finished just before it was stopped
    (State.RECOVERING, Move.SUCCEED): State.SUCCEEDED,
    (State.RECOVERING, Move.FAIL): State.FAILED,
    (State.RECOVERING, Move.STOPPED): State.QUEUED,
    (State.RECOVERING, Move.PAUSE): State.PAUSING,
    (State.RECOVERING, Move.CANCEL): State.CANCELLING,
    #
    (State.PAUSING, Move.SUCCEED): State.SUCCEEDED,
    (State.PAUSING, Move.FAIL): State.FAILED,
    (State.PAUSING, Move.STOPPED): State.PAUSED,
    (State.PAUSING, Move.RESUME): State.RECOVERING,
    (State.PAUSING, Move.CANCEL): State.CANCELLING,
    #
    (State.PAUSED, Move.RESUME): State.QUEUED,
    (State.PAUSED, Move.CANCEL): State.CANCELLED,
    # the user was told that it is being cancelled: however the attempt ends, that is how the job ends
    (State.CANCELLING, Move.SUCCEED): State.CANCELLED,
    (State.CANCELLING, Move.FAIL): State.CANCELLED,
    (State.CANCELLING, Move.STOPPED): State.CANCELLED,
    #
    (State.CANCELLED, Move.RETRY): State.QUEUED,
    (State.FAILED, Move.RETRY): State.QUEUED,
}
"""(state, what happened) -> the next state. What is not here is refused."""


def after(state: State, move: Move) -> State:
    """The state that follows. Raises IllegalTransition when the table has no entry."""
    try:
        return TABLE[state, move]
    except KeyError:
        raise IllegalTransition(state, move) from None


def allowed(state: State) -> tuple[Move, ...]:
    """The moves that a job in this state can make, in the order of the table."""
    return tuple(move for (origin, move) in TABLE if origin is state)


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
