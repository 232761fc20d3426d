"""The states of a job and of an attempt, and the reasons why a job fails."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a job stands. Only `service.jobs.transitions` says how it moves."""

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
