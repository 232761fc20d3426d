"""One host's part of an attempt over a cluster: what it is, as JSON that travels there, and how it is started there.

Ray and Slurm place, reach and account; what runs on a host is a launcher's tree as with the local executor. It is
tethered to the process that the cluster knows, the keeper: when the keeper ends, for whatever reason, the kernel closes
the pipe between them and the launcher kills the tree.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines.core.errors import CommandError
from service.executors.isolation import NONE, Isolation, isolation_of
from service.executors.landlock import abi
from service.executors.local import LocalExecutor
from service.executors.process_tree import MARK
from service.executors.protocol import AttemptSpec, ExecutorError, Handle, HostCapacity, Placement, Sandbox

HERE = "here"


def part_folder(record: Path, number: int) -> Path:
    """Where the part of a host keeps its records: the attempt's own folder for the first."""
    return record if number == 0 else record / f"host-{number}"


def part_of(spec: AttemptSpec, number: int, memory: int, isolation: str) -> dict[str, Any]:
    """What one host runs, without its secrets: the first the story, the others their share of its stages.

    `memory` is in bytes, 0 for no limit; `isolation` a mode that the host must have, or `auto`.
    """
    place, hosts = spec.placements[number], len(spec.placements)
    environment = {**spec.environment, MARK: spec.attempt_id}
    places = spec.sandbox or Sandbox(write=(str(spec.folder),))
    if hosts > 1:
        world = str(spec.record / "world")
        environment |= {"FINERY_HOSTS": str(hosts), "FINERY_HOST": str(number), "FINERY_WORLD": world}
        places = replace(places, write=(*places.write, world))
    record = part_folder(spec.record, number)
    return {
        "attempt_id": spec.attempt_id,
        "job_id": spec.job_id,
        "fencing_token": spec.fencing_token,
        "command": list(spec.command if number == 0 else (sys.executable, "-m", "pipelines", "join")),
        "folder": str(spec.folder),
        "record": str(record),
        "fence": str(record),
        "environment": environment,
        "cpus": place.cpus,
        "gpus": len(place.gpus),
        "memory": memory,
        "isolation": isolation,
        "sandbox": asdict(places),
        "hosts": hosts,
        "log_bytes": spec.log_bytes,
        "log_files": spec.log_files,
    }


def start_part(
    part: Mapping[str, Any], secrets: Mapping[str, str], environment: Mapping[str, str], cgroups: bool = True
) -> tuple[LocalExecutor, Handle]:
    """Start a part on this host; who keeps it, and its handle. `environment` is what the cluster chose for it, such as
    CUDA_VISIBLE_DEVICES. Raises ExecutorError."""
    executor = LocalExecutor(
        HostCapacity(HERE, 1, 0),
        cgroups=cgroups,
        tethered=True,
        isolation=isolation_for(part["isolation"], part["hosts"]),
    )
    record = Path(part["record"])
    record.mkdir(parents=True, exist_ok=True, mode=0o700)
    spec = AttemptSpec(
        part["attempt_id"],
        part["job_id"],
        part["fencing_token"],
        tuple(part["command"]),
        Path(part["folder"]),
        record,
        {**part["environment"], **environment},
        secrets,
        (Placement(HERE, memory=part["memory"]),),
        Path(part["fence"]),
        part["log_bytes"],
        part["log_files"],
        sandbox_of(part["sandbox"]),
    )
    return executor, executor.start(spec)


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
