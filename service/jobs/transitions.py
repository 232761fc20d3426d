"""The one table that says how a job moves from state to state."""

from __future__ import annotations

from enum import StrEnum

from pipelines.errors import FineryError
from service.jobs.states import State


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
        super().__init__(f"the job is {state}; '{move}' is possible when it is {', '.join(able[:-1])}{' or ' if able[1:] else ''}{able[-1]}")


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
