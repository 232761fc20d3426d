"""A job as a value: its id, the immutable request, what it needs, its state, its attempts, leases and events.

Ids are a word, a hyphen, and 26 characters that sort by time: a ULID (github.com/ulid/spec) in lower case, 48 bits of
milliseconds and 80 random bits in Crockford's base 32. Ids made by one process strictly increase, also within a
millisecond. Times are seconds since 1970 (UTC) as floats; sizes are bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypedDict

from service.jobs.states import ACTIVE, TERMINAL, AttemptState, Reason, State

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
PATTERN = re.compile(r"^[a-z]+-[0-7][0-9a-hjkmnp-tv-z]{25}$")
RANDOM_BITS = 80

_lock = threading.Lock()
_last = 0


def new_id(kind: str) -> str:
    """A new id such as `job-01k9…`."""
    global _last
    number = (time.time_ns() // 1_000_000) << RANDOM_BITS | secrets.randbits(RANDOM_BITS)
    with _lock:
        # within a millisecond, or when the clock was set back, count on from the last one
        number = number if number >> RANDOM_BITS > _last >> RANDOM_BITS else _last + 1
        _last = number
    return f"{kind}-{_spelled(number)}"


def _spelled(number: int) -> str:
    return "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


@dataclass(frozen=True)
class Resources:
    """What each of `hosts` hosts must give, all at once or not at all."""

    gpus: int = 0
    """GPUs on each host."""
    gpu_memory: int = 0
    """Bytes that each GPU must have at least; 0 when any will do."""
    gpu_kind: str | None = None
    """Part of the GPU's name that must occur in it, upper or lower case, such as `h200`; None when any will do."""
    cpus: int = 1
    """Processor cores on each host."""
    memory: int = 0
    """Bytes of main memory on each host."""
    hosts: int = 1
    """How many hosts; above 1 the executor must be able to form a world over them."""

    def __post_init__(self) -> None:
        for name, least in (("gpus", 0), ("gpu_memory", 0), ("cpus", 0), ("memory", 0), ("hosts", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least {least}")

    @property
    def total_gpus(self) -> int:
        """GPUs over all hosts."""
        return self.gpus * self.hosts

    def suits(self, slot: GpuSlot) -> bool:
        """Whether this GPU is of the asked kind and large enough."""
        return slot.memory >= self.gpu_memory and (self.gpu_kind is None or self.gpu_kind.lower() in slot.kind.lower())


@dataclass(frozen=True)
class GpuSlot:
    """One GPU of a host."""

    index: int
    """Its number on the host, as CUDA_VISIBLE_DEVICES counts."""
    kind: str = ""
    memory: int = 0
    """Bytes."""
    uuid: str = ""


@dataclass(frozen=True)
class Host:
    """A machine that can run attempts."""

    name: str
    executor: str = "local"
    """Which executor reaches it."""
    cpus: int = 1
    """Processor cores that jobs may use."""
    memory: int = 0
    """Bytes that jobs may use."""
    slots: tuple[GpuSlot, ...] = ()
    state: str = "up"
    """`up`, `draining` (nothing new starts here) or `down`."""
    seen: float = 0.0
    """When it last answered, in seconds since 1970."""
    info: dict[str, Any] = field(default_factory=dict)
    """What else is known: address, driver, versions."""


@dataclass(frozen=True)
class HostShare:
    """The share of one host in a placement."""

    host: str
    gpus: tuple[int, ...] = ()
    """Indices of the host's GPUs, ascending."""


Placement = tuple[HostShare, ...]
"""Where an attempt runs: one part for each of its hosts."""


Kind = Literal["api", "openai"]
MAX_PRIORITY = 1000
MAX_KEY = 255
"""Characters of an idempotency key."""


class ModelVersion(TypedDict):
    """A version of a published model, as a job keeps it."""

    id: str
    reference: str
    """`NAME@3`"""


@dataclass(frozen=True)
class JobRequest:
    """What was asked for. Never changes; `priority` of the job itself may."""

    recipe: str
    """The recipe's text, as it was sent."""
    project: str
    name: str = ""
    """The recipe's name."""
    overrides: tuple[str, ...] = ()
    """`key=value`, as on the command line."""
    priority: int = 0
    """Higher runs first, and may take the place of lower."""
    resources: Resources = field(default_factory=Resources)
    depends_on: tuple[str, ...] = ()
    """Ids of jobs of the same project that must have succeeded before this one starts."""
    deadline: float | None = None
    """When it must have started; a job that still waits then fails with `no_resources`."""
    expected_seconds: float | None = None
    """How long it runs at most, as far as the user knows; back-filling relies on it."""
    max_retries: int = 3
    """How often it is tried again after an error that may pass."""
    max_seconds: float | None = None
    """How long it may run, all attempts since the last retry by a user together; None for as long as the server
    allows."""
    ttl_seconds_after_finished: float | None = None
    """How long it is kept after its end; None for as long as the server keeps jobs."""
    idempotency_key: str | None = None
    kind: Kind = "api"
    submitted_by: str = ""
    """Id of the token."""
    secrets: tuple[str, ...] = ()
    """Names of secrets that the attempt is given; never their values."""
    openai: Mapping[str, Any] = field(default_factory=dict)
    """What the OpenAI surface needs to answer in its own words."""
    models: Mapping[str, ModelVersion] = field(default_factory=dict)
    """Reference to a model, as the recipe has it -> the version that it stood for when the job was submitted."""

    def __post_init__(self) -> None:
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise ValueError(f"priority is {self.priority}, must lie between -{MAX_PRIORITY} and {MAX_PRIORITY}")
        if self.expected_seconds is not None and self.expected_seconds <= 0:
            raise ValueError(f"expected_seconds is {self.expected_seconds}, must be above 0")
        if self.max_seconds is not None and self.max_seconds <= 0:
            raise ValueError(f"max_seconds is {self.max_seconds}, must be above 0")
        if self.ttl_seconds_after_finished is not None and self.ttl_seconds_after_finished < 0:
            raise ValueError(f"ttl_seconds_after_finished is {self.ttl_seconds_after_finished}, must be at least 0")
        if self.idempotency_key is not None and not 1 <= len(self.idempotency_key) <= MAX_KEY:
            raise ValueError(
                f"the idempotency key has {len(self.idempotency_key)} characters, must have 1 to {MAX_KEY}"
            )

    def digest(self) -> str:
        """SHA-256 of what was asked, the idempotency key and the token left out: equal requests have equal digests."""
        fields = asdict(self) | {"idempotency_key": None, "submitted_by": ""}
        del fields["models"]  # the same request again is the same job, wherever an alias points by now
        # requests that were kept before these existed keep their digest
        for later in ("max_seconds", "ttl_seconds_after_finished"):
            if fields[later] is None:
                del fields[later]
        return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class Job:
    """A request and where it stands."""

    id: str
    request: JobRequest
    state: State
    created: float
    updated: float
    """Of the last change of state or of any field."""
    priority: int = 0
    """The request's, unless a user changed it since."""
    reason: Reason | None = None
    message: str = ""
    """The sentence beside the reason."""
    started: float | None = None
    """When its first attempt ran."""
    finished: float | None = None
    not_before: float = 0.0
    """End of a back-off; it does not start before."""
    retries: int = 0
    """Attempts that ended with an error and counted."""
    preemptions: int = 0
    attempt: str | None = None
    """Id of the attempt that holds resources, or held them last."""
    attempts: int = 0
    """How many there were."""
    attempts_before_retry: int = 0
    """How many there were when a user last put it back into the queue; their time no longer counts."""
    last_event: int = 0
    """Id of its newest event."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    """The newest of its `progress` and `metric` events in short: stage, step, total, loss."""

    @property
    def project(self) -> str:
        return self.request.project

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in TERMINAL

    @property
    def active(self) -> bool:
        """Whether it holds resources."""
        return self.state in ACTIVE


@dataclass(frozen=True)
class Attempt:
    """One try at a job, on one placement."""

    id: str
    job: str
    number: int
    """1 for the first."""
    fencing: int
    """The fencing token it was given; every write on its behalf carries it."""
    executor: str
    placement: Placement
    state: AttemptState
    created: float
    resources: Resources = field(default_factory=Resources)
    handle: Mapping[str, Any] = field(default_factory=dict)
    """What the executor needs to find it again after a restart."""
    started: float | None = None
    """When its process started."""
    ended: float | None = None
    exit_code: int | None = None
    reason: Reason | None = None
    message: str = ""
    ingested: int = 0
    """Id of the last event of the run folder's `events.jsonl` that is in the store."""
    offset: int = 0
    """Bytes of `events.jsonl` that were read for it."""
    skipped_lines: int = 0
    """Lines of it that were no events."""


@dataclass(frozen=True)
class Lease:
    """The right to act for something until it expires; a later holder has a higher fencing token."""

    name: str
    """A job's id, or `scheduler`."""
    holder: str
    fencing: int
    expires: float


@dataclass(frozen=True)
class Event:
    """One line of a job's stream: what the run wrote, and every change of state (`event: state`)."""

    job: str
    id: int
    """Strictly increases within the job, without gaps."""
    time: float
    event: str
    stage: str | None = None
    step: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Everything else, such as `metrics` or `message`."""
    attempt: str | None = None
