"""What an executor is: it runs one process tree per attempt, reports on it, and can prove that it is dead.

An executor decides nothing. Whether an attempt is retried, what a job's state is and what is published is the store's;
an executor that lost its memory (a restarted service, a vanished Ray head) answers `Lost`, and the store goes on from
there. All calls are made from the supervisor's thread, return quickly except `kill`, and raise only ExecutorError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from service.executors.isolation import Isolation


class ExecutorError(Exception):
    """The executor could not do what was asked, in one sentence; the attempt did not start."""


@dataclass(frozen=True)
class Gpu:
    """One device of a host."""

    index: int
    """What CUDA_VISIBLE_DEVICES calls it on that host."""
    memory: int = 0
    """Bytes."""
    kind: str = ""
    """As the driver names it, such as `NVIDIA H200`."""


@dataclass(frozen=True)
class HostCapacity:
    """What a host has in all, whether it is used or not."""

    name: str
    cpus: int
    memory: int
    """Bytes."""
    gpus: tuple[Gpu, ...] = ()
    alive: bool = True


@dataclass(frozen=True)
class Placement:
    """The part of one host that an attempt was given."""

    host: str
    gpus: tuple[int, ...] = ()
    cpus: int = 1
    memory: int = 0
    """Bytes; 0 sets no limit."""


@dataclass(frozen=True)
class Sandbox:
    """What an isolated attempt sees beside the system and the code. Plain values: it travels to other hosts as JSON."""

    read: tuple[str, ...] = ()
    """Files and folders that it may read."""
    write: tuple[str, ...] = ()
    """Folders that it may change; those that are missing are made."""
    hidden: tuple[str, ...] = ()
    """Folders that nothing else of the system may open to it, such as the service's home."""
    private_endpoints: bool = False
    """Whether it may reach addresses that are not public, through the egress proxy."""
    refused_ports: tuple[int, ...] = ()
    """Ports on addresses that are not public which it may not reach even so: the server's and the database's."""


@dataclass(frozen=True)
class AttemptSpec:
    """One attempt to start: what runs, where it works, what it may see."""

    attempt_id: str
    job_id: str
    fencing_token: int
    """Strictly larger than that of every earlier attempt of the same job."""
    command: tuple[str, ...]
    """Usually `python -m pipelines run recipe.yaml`, run in `folder`."""
    folder: Path
    """The job's folder, `HOME/jobs/<job>`: recipe.yaml, runs/<name>/ and what materialise put there."""
    record: Path
    """The attempt's own folder, `HOME/jobs/<job>/attempts/<attempt>`: what the executor notes, and console.log."""
    environment: Mapping[str, str]
    """Everything the process sees besides what the placement adds and where its secrets lie; nothing is inherited."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Name of a file -> its content, in `record/secrets` while the attempt lives (mode 0600) and deleted when it has
    ended. The environment names the folder (FINERY_SECRETS); neither a name nor a value stands in the environment of
    any process, a log or a record."""
    placements: tuple[Placement, ...] = ()
    """One entry a host; a gang has several."""
    fence: Path | None = None
    """The folder whose lock and fence keep two attempts apart; `folder` when not given."""
    log_bytes: int = 8 << 20
    """console.log is rotated at this size."""
    log_files: int = 4
    """How many rotated logs are kept."""
    sandbox: Sandbox | None = None
    """What it sees where attempts are isolated; its folder alone when not given."""
    seconds: float | None = None
    """How long it may run, where its job has a limit: for executors that must promise this to a queue. The store ends
    the attempt, whether or not they enforce it."""


@dataclass(frozen=True)
class Handle:
    """A started attempt, as the store keeps it. `record` is JSON and enough to find the attempt again."""

    executor: str
    attempt_id: str
    fencing_token: int
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Running:
    """It lives, as far as can be known."""

    pid: int | None = None


@dataclass(frozen=True)
class Exited:
    """Every process of the attempt has ended."""

    code: int
    """The exit code, or the negative number of the signal that ended it."""
    reason: str = ""
    """What the executor knows beyond the code, such as `out_of_memory` from the kernel's counter; else empty."""
    asked: bool = False
    """Whether it ended after `stop` or `kill`."""


@dataclass(frozen=True)
class Lost:
    """Nobody knows how it ended. Parts of it may live: `kill` must answer before another attempt starts."""

    why: str


Condition = Running | Exited | Lost


@runtime_checkable
class Executor(Protocol):
    """Runs attempts. Implementations: `local`, `docker`, `ray`, `slurm`; named in
    `service.executors.registry.EXECUTORS`."""

    name: str
    isolation: Isolation
    """What keeps the attempts that it starts apart from the service."""

    def start(self, spec: AttemptSpec) -> Handle:
        """Start the attempt, or return the handle of the one already started under this id and fencing token.

        Raises ExecutorError when it cannot start, also when another attempt of the same job still holds the folder.
        """

    def poll(self, handle: Handle) -> Condition:
        """How it is doing. `Exited` and `Lost` are final. Raises ExecutorError when that cannot be told now: ask
        again."""

    def stop(self, handle: Handle, grace: float) -> None:
        """Ask it to save a checkpoint and exit 75 (SIGTERM); after `grace` seconds the tree is killed. Returns at once.

        Asked again, nothing happens but that a time which ends earlier counts. Raises ExecutorError when it may not
        have been told: ask again."""

    def kill(self, handle: Handle, timeout: float = 30.0) -> bool:
        """Kill the whole tree and wait until it is gone; True when it is proven dead."""

    def reattach(self, record: Mapping[str, object]) -> Handle | None:
        """The handle of an attempt that an earlier service process started, from its handle's record, or from the
        spec's `attempt_id`, `fencing_token`, `folder` and `record` alone. None: it never started, and cannot start
        any more."""

    def capacity(self) -> tuple[HostCapacity, ...]:
        """The hosts it can place on."""

    def logs(self, handle: Handle, after: int = 0) -> Iterator[bytes]:
        """What the attempt printed from byte `after` of the whole stream on, as far as rotation kept it."""

    def close(self) -> None:
        """Let go of connections. Attempts keep running."""
