"""Runs one host's part of an attempt inside a Ray actor, and ends it when nobody on the service's side is heard.

The part is a launcher's tree as with the local executor, but tethered: when the actor's process ends, for whatever
reason, the kernel closes the pipe between them and the launcher kills the tree. The actor ends itself when it has not
been asked for `lease` seconds. A service that cannot reach a host therefore knows, once that time has passed on its own
clock, that nothing of the attempt lives there: it need not trust Ray's word.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.core.errors import CommandError
from service.executors.isolation import NONE, Isolation, isolation_of
from service.executors.landlock import abi
from service.executors.local import LocalExecutor
from service.executors.protocol import AttemptSpec, ExecutorError, HostCapacity, Placement, Running, Sandbox

HOST = "here"


class Keeper:
    """The body of the actor."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._heard = time.monotonic()
        self._executor: LocalExecutor | None = None
        self._handle: Any = None
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """Start the part; returns the launcher's record. Raises ExecutorError."""
        self._heard = time.monotonic()
        environment = dict(part["environment"])
        for name in ("CUDA_VISIBLE_DEVICES",):  # Ray chose the devices for this actor
            if name in os.environ:
                environment[name] = os.environ[name]
        self._executor = LocalExecutor(
            HostCapacity(HOST, 1, 0), tethered=True, isolation=isolation_for(part["isolation"], part["hosts"])
        )
        spec = AttemptSpec(
            part["attempt_id"],
            part["job_id"],
            part["fencing_token"],
            tuple(part["command"]),
            Path(part["folder"]),
            Path(part["record"]),
            environment,
            part["secrets"],
            (Placement(HOST, memory=part["memory"]),),
            Path(part["fence"]),
            part["log_bytes"],
            part["log_files"],
            sandbox_of(part["sandbox"]),
        )
        Path(part["fence"]).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._handle = self._executor.start(spec)
        return dict(self._handle.record)

    def beat(self) -> bool:
        """Renew the lease; whether the part runs."""
        self._heard = time.monotonic()
        return (
            self._handle is not None
            and self._executor is not None
            and isinstance(self._executor.poll(self._handle), Running)
        )

    def stop(self, grace: float) -> None:
        """As `Executor.stop`."""
        if self._handle is not None and self._executor is not None:
            self._executor.stop(self._handle, grace)

    def address(self) -> str:
        """Where the other hosts reach this one."""
        import ray

        return str(ray.util.get_node_ip_address())

    def _watch(self) -> None:
        while time.monotonic() - self._heard < self._lease:
            time.sleep(min(0.5, self._lease / 10))
        os._exit(1)  # the tether breaks with the process


def sandbox_of(fields: Mapping[str, Any]) -> Sandbox:
    """The places again, from JSON."""
    return Sandbox(
        tuple(fields["read"]),
        tuple(fields["write"]),
        tuple(fields["hidden"]),
        bool(fields["private_endpoints"]),
        tuple(fields["refused_ports"]),
    )


def isolation_for(wanted: str, hosts: int) -> Isolation:
    """What keeps a part apart on this host. Raises ExecutorError when it was asked for and is not to be had.

    Ranks on several hosts meet in the hosts' own network: such a part keeps to its files, by Landlock alone.
    """
    if wanted == "none":
        return NONE
    try:
        isolation = isolation_of(wanted)
    except CommandError as error:
        raise ExecutorError(str(error)) from None
    if hosts > 1:
        isolation = Isolation("landlock", (), abi()) if abi() else NONE
    if not isolation.kept:
        raise ExecutorError(
            "this host cannot isolate attempts; see `finery doctor` there, or serve with --isolation none"
        )
    return isolation
