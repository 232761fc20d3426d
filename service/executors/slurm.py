"""The Slurm executor: an attempt is one sbatch job on the nodes that the store chose, with a launcher's tree on each.

Slurm starts, accounts and enforces limits; it decides nothing. Its jobs are never requeued by itself, and what it says
about an end is not believed alone: every part of an attempt leaves its `exit.json` in the attempt's folder, on the file
system that all nodes share. A job is found again by its name, which is the attempt's, so a service that died between
sbatch and the store's write finds it; of two jobs of one attempt the first to begin claims it (see `slurm_part`). Where
a node is gone and can write nothing, the attempt is dead once its last beat is older than its lease.

While slurmctld does not answer, jobs go on and so does their watching; starting waits until it answers again.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.core.errors import CommandError
from service.executors import slurm_part
from service.executors.hosts import memory_limit
from service.executors.isolation import Isolation
from service.executors.parts import part_folder, part_of
from service.executors.protocol import (
    AttemptSpec,
    Condition,
    Executor,
    ExecutorError,
    Exited,
    Handle,
    HostCapacity,
    Lost,
    Placement,
    Running,
)
from service.executors.records import (
    FenceRefused,
    delete_secrets,
    read_console,
    read_record,
    take_fence,
    write_file,
    write_record,
    write_secrets,
)
from service.executors.slurm_cluster import (
    PREFIX,
    SlurmCluster,
    SlurmError,
    SlurmJob,
    SlurmNode,
    capacity_of,
    options_of,
)
from service.executors.slurm_part import BATCH, CLAIM, PART, REFUSED, ask_to_stop, claim

LEASE = 60.0
"""Seconds after which a part ends itself that cannot reach the attempt's folder."""
MARGIN = 1.25
"""The lease counts so many times longer on this side: clocks of two hosts do not run alike."""
ASK_SECONDS = 2.0
"""Slurm's queue is read at most so often, for all attempts at once."""
KEEPERS = 256 << 20
"""Bytes for the processes around an attempt, beside what it may take itself."""
SCRIPT = b'#!/bin/sh\nexec "$@"\n'
"""The job's script. What it runs are its arguments: nothing is written into a script."""

log = logging.getLogger(__name__)


class SlurmExecutor:
    """Runs attempts as jobs of a Slurm cluster."""

    name = "slurm"

    def __init__(
        self,
        cluster: SlurmCluster | None = None,
        *,
        home: Path | None = None,
        lease: float = LEASE,
        notice: float = 60.0,
        isolation: str = "none",
        attempt_memory: int | None = 0,
    ) -> None:
        """`home` is tried for whether the nodes share it, when the capacity is first asked for. `notice` are the
        seconds before a time limit at which a job is told. The rest as in `RayExecutor`."""
        self.isolation = Isolation("none") if isolation == "none" else Isolation("host")
        self._wanted = isolation
        self._attempt_memory = attempt_memory
        self._cluster = cluster or SlurmCluster()
        self._home = home
        self._tag = f"{PREFIX}{hashlib.sha256(str(home).encode()).hexdigest()[:12]}"
        """Tells the jobs of this service from those of another one of the same user."""
        self._lease = lease
        self._notice = notice
        self._nodes: dict[str, SlurmNode] = {}
        self._hosts: tuple[HostCapacity, ...] = ()
        self._looking = threading.Lock()
        self._seen: dict[Path, tuple[float, float]] = {}
        """A part's folder -> when its beat was written, and when that was first seen."""
        self._over: dict[str, float] = {}
        """An attempt whose job was seen to be over without a last record -> since when."""

    def start(self, spec: AttemptSpec) -> Handle:
        """See `Executor.start`. Raises ExecutorError also while Slurm does not answer: then `reattach` does too."""
        handle = self._on_record(spec.record, spec.attempt_id)
        if handle is not None:
            if handle.record["job"] or (spec.record / CLAIM).exists():
                return handle
            if (job := self._found(handle)) is not None:
                return self._with_job(handle, job.id)
        if not self._nodes:
            self.capacity()
        unknown = [place.host for place in spec.placements if place.host not in self._nodes]
        if unknown or not spec.placements:
            raise ExecutorError(f"Slurm has no node {', '.join(unknown) or 'for it'} any more")
        if handle is None:
            self._refuse_a_second(spec)
            spec.record.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                os.close(take_fence(str(spec.folder), spec.fencing_token))
            except FenceRefused as error:
                raise ExecutorError(str(error)) from None
            handle = self._note(spec)
        return self._with_job(handle, self._submit(spec, handle.record["gres"]))

    def poll(self, handle: Handle) -> Condition:
        """See `Executor.poll`. The shared folder tells the end; Slurm is asked whether the job is still there."""
        folders = _folders(handle)
        ends = [read_record(folder, "exit.json") for folder in folders]
        first = ends[0]
        if first is not None and not first.get("tether_lost") and all(ends):
            self._forget(handle)
            return Exited(int(first["code"]), str(first["reason"]), bool(first["asked"]))
        if any(each is not None and each.get("tether_lost") for each in ends):
            return Lost(f"its part on {_names(handle, ends)} was lost")
        for folder in folders:
            if (refused := read_record(folder, REFUSED)) is not None:
                return Lost(str(refused["why"]))
        claimed = read_record(folders[0], CLAIM)
        if claimed is not None and not claimed["job"]:
            return Lost(str(claimed["why"]))
        quiet = [number for number, end in enumerate(ends) if end is None and self._is_quiet(handle, number)]
        if quiet:
            nodes = ", ".join(handle.record["nodes"][number] for number in quiet)
            return Lost(f"nothing was heard from node {nodes} for {self._patience(handle):.0f} s")
        try:
            job = self._job(handle)
        except ExecutorError:  # slurmctld may be away for a while: its jobs go on
            return Running()
        if job is None or job.over:
            return self._ended_in_slurm(handle, job, claimed is not None)
        self._over.pop(handle.attempt_id, None)
        return Running()

    def stop(self, handle: Handle, grace: float) -> None:
        """See `Executor.stop`. A job that waits in Slurm's queue is taken out of it."""
        if self._close(handle):
            self._leave_ends(handle, code=-15, asked=True)
            self._cancel(handle)
            return
        for folder in _folders(handle):
            ask_to_stop(folder, grace)

    def kill(self, handle: Handle, timeout: float = 30.0) -> bool:
        """See `Executor.kill`. Proven by the records of every part, or by their silence."""
        end = time.monotonic() + timeout
        if self._close(handle):
            self._leave_ends(handle, code=-9, asked=True)
        elif not self._has_ended(handle):
            for folder in _folders(handle):
                ask_to_stop(folder, 0.0)
            while not self._has_ended(handle) and time.monotonic() < end - timeout / 2:
                time.sleep(0.05)
        self._cancel(handle)
        while not self._has_ended(handle):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        if (read_record(_folders(handle)[0], CLAIM) or {}).get("job"):  # silence need be waited for once only
            self._leave_ends(handle, code=-9, asked=False, tether_lost=True)
        self._forget(handle)
        return True

    def reattach(self, record: Mapping[str, Any]) -> Handle | None:
        """See `Executor.reattach`. Raises ExecutorError when only Slurm can tell and does not answer."""
        place, attempt_id = Path(str(record["record"])), str(record["attempt_id"])
        handle = self._on_record(place, attempt_id)
        if handle is not None:
            claimed = read_record(place, CLAIM)
            if handle.record["job"] or (claimed is not None and claimed["job"]):
                return handle
            if (job := self._found(handle)) is not None:
                return self._with_job(handle, job.id)
            return None if self._close(handle, "it was never started") else self._on_record(place, attempt_id)
        folder = str(record.get("folder", ""))
        if os.path.isdir(folder):
            try:
                os.close(take_fence(folder, int(record["fencing_token"])))
            except FenceRefused:
                return self._on_record(place, attempt_id)
        return None

    def capacity(self) -> tuple[HostCapacity, ...]:
        """The partition's nodes, without what jobs of others hold; when Slurm stops answering, they are not alive.

        What it says is a few seconds old: only the first time is Slurm waited for. Then it raises ExecutorError when
        Slurm does not answer, or the nodes do not see the home.
        """
        if not self._nodes:
            try:
                self._look_at_nodes()
            except SlurmError as error:
                raise ExecutorError(
                    f"{error}; the slurm executor needs a slurmctld that answers `scontrol ping` on this machine"
                ) from None
        elif not self._looking.locked():
            threading.Thread(target=self._look_again, name="slurm", daemon=True).start()
        return self._hosts

    def logs(self, handle: Handle, after: int = 0) -> Iterator[bytes]:
        """See `Executor.logs`: what the first node's part printed."""
        return read_console(_folders(handle)[0], after)

    def close(self) -> None:
        """Nothing to let go of; jobs go on."""

    def _look_at_nodes(self) -> None:
        nodes = self._cluster.nodes()
        ours = self._held()
        if not self._nodes and self._home is not None:
            self._cluster.try_folder(self._home)
        self._nodes = {node.name: node for node in nodes}
        self._hosts = tuple(capacity_of(node, *ours.get(node.name, (0, 0, 0))) for node in nodes)

    def _look_again(self) -> None:
        """The server renews leases in the thread that asks for the capacity: it must not wait for a slow slurmctld."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            self._look_at_nodes()
        except ExecutorError as error:
            if any(host.alive for host in self._hosts):
                log.warning("nothing is placed on Slurm's nodes now: %s", error)
            self._hosts = tuple(replace(host, alive=False) for host in self._hosts)
        finally:
            self._looking.release()

    def _note(self, spec: AttemptSpec) -> Handle:
        """Put on record what is to be submitted; the job's number comes later."""
        record = {
            "attempt_id": spec.attempt_id,
            "fencing_token": spec.fencing_token,
            "record": str(spec.record),
            "nodes": [place.host for place in spec.placements],
            "cpus": max(1, spec.placements[0].cpus),
            "gres": list(self._gres(spec.placements[0])),
            "lease": self._lease,
            "notice": self._notice,
            "job": "",
        }
        write_record(str(spec.record), BATCH, record)
        return Handle(self.name, spec.attempt_id, spec.fencing_token, record)

    def _with_job(self, handle: Handle, job: str) -> Handle:
        record = {**handle.record, "job": job}
        write_record(str(record["record"]), BATCH, record)
        return Handle(self.name, handle.attempt_id, handle.fencing_token, record)

    def _submit(self, spec: AttemptSpec, gres: Sequence[str]) -> str:
        """Write what each node runs, and hand the job to Slurm. Returns its number."""
        place, count = spec.placements[0], len(spec.placements)
        host = next(host for host in self._hosts if host.name == place.host)
        limit = memory_limit(host, place, self._attempt_memory, least=0)
        for number in range(count):
            folder = part_folder(spec.record, number)
            folder.mkdir(exist_ok=True, mode=0o700)
            write_secrets(folder, spec.secrets)
            part = part_of(spec, number, limit, self._wanted)
            part["environment"]["FINERY_ADDRESS"] = self._nodes[place.host].address
            write_record(str(folder), PART, part)
        script = spec.record / "job.sh"
        write_file(str(spec.record), script.name, SCRIPT)
        memory = min(limit + KEEPERS, self._nodes[place.host].memory) if limit else 0
        cpus = max(1, place.cpus)
        nodes = ",".join(each.host for each in spec.placements)
        words = [
            "--parsable",
            "--no-requeue",
            f"--job-name={PREFIX}{spec.attempt_id}",
            f"--comment={self._tag} {cpus} {memory} {len(place.gpus)} {nodes}",
            f"--nodes={count}",
            f"--ntasks={count}",
            "--ntasks-per-node=1",
            f"--nodelist={nodes}",
            f"--cpus-per-task={cpus}",
            *([f"--mem={math.ceil(memory / (1 << 20))}M"] if memory else []),
            *gres,
            f"--signal=B:TERM@{max(1, math.ceil(self._notice))}",
            "--open-mode=append",
            f"--output={str(spec.record / 'slurm.log').replace('%', '%%')}",
            f"--chdir={spec.record}",
            *self._cluster.words,
        ]
        if spec.seconds is not None:
            words.append(f"--time={math.ceil((spec.seconds + 2 * self._notice + 60) / 60)}")
        command = (sys.executable, "-m", slurm_part.__name__, "batch", str(spec.record))
        return self._cluster.run("sbatch", *words, str(script), *command).strip().partition(";")[0]

    def _gres(self, place: Placement) -> tuple[str, ...]:
        """How many GPUs a node gives; of which kind, where it has several. Slurm chooses the devices."""
        kinds = self._nodes[place.host].gpus
        if not place.gpus:
            return ()
        if len(set(kinds)) < 2 or not all(kinds):
            return (f"--gres=gpu:{len(place.gpus)}",)
        counts = Counter(kinds[index] for index in place.gpus)
        return ("--gres=" + ",".join(f"gpu:{kind}:{count}" for kind, count in counts.items()),)

    def _found(self, handle: Handle, age: float = 0.0) -> SlurmJob | None:
        """The attempt's job: one that is not over before one that is. Raises ExecutorError."""
        jobs = self._cluster.jobs(age).get(f"{PREFIX}{handle.attempt_id}", [])
        return min(jobs, key=lambda job: (job.over, job.id), default=None)

    def _job(self, handle: Handle) -> SlurmJob | None:
        """As `_found`, from what was read of the queue a moment ago: a job that is not there may be newer."""
        job = self._found(handle, ASK_SECONDS)
        return job if job is not None else self._found(handle)

    def _held(self) -> dict[str, tuple[int, int, int]]:
        """Processor cores, bytes and GPUs that our own jobs hold, by node; as `_submit` wrote them."""
        held: dict[str, tuple[int, int, int]] = {}
        form = re.compile(rf"{self._tag} (\d+) (\d+) (\d+) (\S+)\s*")
        for job in (job for jobs in self._cluster.jobs(ASK_SECONDS).values() for job in jobs):
            if job.over or job.state == "PENDING" or (found := form.fullmatch(job.comment)) is None:
                continue
            cpus, memory, gpus, nodes = found.groups()
            for node in nodes.split(","):
                before = held.get(node, (0, 0, 0))
                held[node] = (before[0] + int(cpus), before[1] + int(memory), before[2] + int(gpus))
        return held

    def _ended_in_slurm(self, handle: Handle, job: SlurmJob | None, began: bool) -> Condition:
        """Slurm's job is over and has left no last record: it never began, was killed, or its record comes late."""
        state = f"({job.state}: {job.reason})" if job is not None else "(Slurm knows it no more)"
        if not began:
            why = (
                f"Slurm's job {handle.record['job']} ended before it began {state}; the nodes must see "
                f"{handle.record['record']} on a file system that they share with the server"
            )
            self._close(handle, why)
        since = self._over.setdefault(handle.attempt_id, time.monotonic())
        if time.monotonic() - since < float(handle.record["lease"]) / 2:  # another host's file may be seen late
            return Running()
        return Lost(f"Slurm's job {handle.record['job']} was ended from outside {state}")

    def _close(self, handle: Handle, why: str = "") -> bool:
        """See to it that an attempt which has not begun never will; whether that is so now, by this call."""
        try:
            return claim(_folders(handle)[0], "", why)
        except OSError as error:
            raise ExecutorError(f"{handle.record['record']} cannot be written: {error.strerror}") from None

    def _leave_ends(self, handle: Handle, **end: Any) -> None:
        """Write the last record of every part that left none."""
        for folder in _folders(handle):
            if folder.is_dir() and not (folder / "exit.json").exists():
                write_record(str(folder), "exit.json", {"reason": "", **end})

    def _cancel(self, handle: Handle) -> None:
        """Take its jobs out of Slurm; those that cannot be reached now find the attempt closed when they begin."""
        with suppress(ExecutorError):
            self._cluster.run("scancel", "--quiet", "--me", f"--name={PREFIX}{handle.attempt_id}", timeout=10.0)

    def _refuse_a_second(self, spec: AttemptSpec) -> None:
        for path in spec.record.parent.glob(f"*/{BATCH}"):
            other = self._on_record(path.parent, path.parent.name)
            if other is not None and other.attempt_id != spec.attempt_id and not self._has_ended(other):
                raise ExecutorError(f"another attempt of this job still runs: {other.attempt_id}")

    def _on_record(self, folder: Path, attempt_id: str) -> Handle | None:
        record = read_record(folder, BATCH)
        if record is None or record["attempt_id"] != attempt_id:
            return None
        return Handle(self.name, attempt_id, int(record["fencing_token"]), record)

    def _has_ended(self, handle: Handle) -> bool:
        """Whether nothing of it can live or come to live."""
        claimed = read_record(_folders(handle)[0], CLAIM)
        if claimed is not None and not claimed["job"]:
            return True
        return all(
            (folder / "exit.json").exists() or (folder / REFUSED).exists() or self._is_gone(handle, number)
            for number, folder in enumerate(_folders(handle))
        )

    def _is_gone(self, handle: Handle, number: int) -> bool:
        """Whether a part that began is silent for too long, or one that did not has no job that could start it."""
        if self._is_quiet(handle, number):
            return True
        if (_folders(handle)[number] / "beat").exists() or not (_folders(handle)[0] / CLAIM).exists():
            return False
        try:
            job = self._job(handle)
        except ExecutorError:
            return False
        if job is not None and not job.over:
            return False
        since = self._over.setdefault(handle.attempt_id, time.monotonic())
        return time.monotonic() - since > self._patience(handle)

    def _is_quiet(self, handle: Handle, number: int) -> bool:
        """Whether a part that was heard before is silent for longer than it may live so."""
        folder = _folders(handle)[number]
        try:
            written = (folder / "beat").stat().st_mtime
        except OSError:
            return False
        now = time.monotonic()
        before, seen = self._seen.get(folder, (-1.0, now))
        if written != before:
            self._seen[folder] = (written, now)
            return False
        return now - seen > self._patience(handle)

    @staticmethod
    def _patience(handle: Handle) -> float:
        return float(handle.record["lease"]) * MARGIN + 5.0

    def _forget(self, handle: Handle) -> None:
        self._over.pop(handle.attempt_id, None)
        for folder in _folders(handle):
            self._seen.pop(folder, None)
        delete_secrets(_folders(handle)[0], parts=True)


def _folders(handle: Handle) -> list[Path]:
    record = Path(str(handle.record["record"]))
    return [part_folder(record, number) for number in range(len(handle.record["nodes"]))]


def _names(handle: Handle, ends: Sequence[Mapping[str, Any] | None]) -> str:
    lost = [
        node
        for node, end in zip(handle.record["nodes"], ends, strict=True)
        if end is not None and end.get("tether_lost")
    ]
    return ", ".join(lost)


def slurm(settings: Any) -> Executor:
    """The executor for these settings. Raises CommandError for options that may not be handed to sbatch."""
    for name in ("slurm_partition", "slurm_account"):
        if not re.fullmatch(r"[\w.@-]*", getattr(settings, name)):
            raise CommandError(f"FINERY_{name.upper()} is '{getattr(settings, name)}', which is no name of Slurm's")
    return SlurmExecutor(
        SlurmCluster(settings.slurm_partition, settings.slurm_account, options_of(settings.slurm_options)),
        home=settings.home,
        notice=settings.stop_seconds,
        isolation=settings.isolation,
        attempt_memory=settings.attempt_memory,
    )
