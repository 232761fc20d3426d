"""The ray executor: attempts on the nodes of a Ray cluster, one placement group each, several hosts for one attempt.

Ray places and reaches; it decides nothing. It is told never to restart an actor, its head may vanish, and what it
says about an end is not believed: every part of an attempt leaves its `exit.json` in the attempt's folder, on the
file system that all hosts share, when its tree is gone. Where a host is gone and can write nothing, the attempt is
dead once its lease there has run out (see `ray_keeper`). This process never loads Ray: `ray_agent` does.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core.errors import CommandError
from service.executors import ray_agent
from service.executors.hosts import memory_limit
from service.executors.isolation import Isolation
from service.executors.parts import part_folder, part_of
from service.executors.protocol import (
    AttemptSpec,
    Condition,
    Executor,
    ExecutorError,
    Exited,
    Gpu,
    Handle,
    HostCapacity,
    Lost,
    Running,
)
from service.executors.records import FenceRefused, delete_secrets, read_console, read_record, take_fence, write_record
from service.safety.redaction import NAMES

LEASE = 60.0
"""Seconds after which a part that nobody asks for ends itself."""
BEAT = 2.0
MARGIN = 1.25
"""The lease counts so many times longer on this side: clocks of two hosts do not run alike."""
ANSWER_SECONDS = 150.0
_DEAD = frozenset({"gone"})


class AgentLink:
    """The agent's process, started when first asked and again when it has died."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def ask(self, verb: str, timeout: float = ANSWER_SECONDS, **fields: Any) -> Any:
        """The agent's answer. Raises ExecutorError when there is none, or when it is an error."""
        with self._lock:
            process = self._agent()
            try:
                assert process.stdin is not None
                process.stdin.write(json.dumps({"verb": verb, **fields}) + "\n")
                process.stdin.flush()
            except OSError as error:
                self._drop()
                raise ExecutorError(f"the Ray cluster was lost: {error}") from None
            return self._answer(process, timeout)

    def close(self) -> None:
        """End the agent."""
        with self._lock:
            self._drop()

    def _agent(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._drop()
        self._process = subprocess.Popen(
            (sys.executable, "-m", ray_agent.__name__, self._address),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_agent_environment() | {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._answer(self._process, 60.0)
        return self._process

    def _answer(self, process: subprocess.Popen[str], timeout: float) -> Any:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if selector.select(timeout) else ""
        if not line:
            self._drop()
            raise ExecutorError("the Ray cluster does not answer; look at its head, or choose another executor")
        answer = json.loads(line)
        if "error" in answer:
            raise ExecutorError(f"Ray: {answer['error']}")
        return answer["ok"]

    def _drop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process = None


@dataclass
class Contact:
    """When an attempt's parts were last heard."""

    asked_at: float
    heard: float
    states: Sequence[str] = ()


class RayExecutor:
    """Runs attempts on a Ray cluster."""

    name = "ray"

    def __init__(
        self, address: str = "", lease: float = LEASE, isolation: str = "none", attempt_memory: int | None = 0
    ) -> None:
        """`isolation` is a mode that each host must have, or `auto`; `attempt_memory` is as `Local` takes it."""
        self.isolation = Isolation("none") if isolation == "none" else Isolation("host")
        self._wanted = isolation
        self._attempt_memory = attempt_memory
        self._link = AgentLink(address)
        self._lease = lease
        self._contacts: dict[str, Contact] = {}
        self._hosts: tuple[HostCapacity, ...] = ()
        self._nodes: dict[str, str] = {}

    def start(self, spec: AttemptSpec) -> Handle:
        """See `Executor.start`."""
        if (handle := self._on_record(spec.record, spec.attempt_id)) is None:
            self.capacity()
            unknown = [part.host for part in spec.placements if part.host not in self._nodes]
            if unknown or not spec.placements:
                raise ExecutorError(f"Ray has no node {', '.join(unknown) or 'for it'} any more")
            self._refuse_a_second(spec)
            spec.record.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                os.close(take_fence(str(spec.folder), spec.fencing_token))
            except FenceRefused as error:
                raise ExecutorError(str(error)) from None
            record = {
                "attempt_id": spec.attempt_id,
                "fencing_token": spec.fencing_token,
                "record": str(spec.record),
                "parts": len(spec.placements),
                "lease": self._lease,
            }
            write_record(str(spec.record), "ray.json", record)
            handle = Handle(self.name, spec.attempt_id, spec.fencing_token, record)
        if not (spec.record / "launcher.json").exists() and not self._has_ended(handle):
            self._touch(handle)
            self._link.ask(
                "start",
                attempt_id=spec.attempt_id,
                parts=[self._part(spec, number) for number in range(len(spec.placements))],
                lease=self._lease,
            )
            self._heard(handle, ())
        return handle

    def poll(self, handle: Handle) -> Condition:
        """See `Executor.poll`. The shared folder tells the end; Ray is asked whether the parts live."""
        first = read_record(_folder(handle, 0), "exit.json")
        rest = [read_record(_folder(handle, number), "exit.json") for number in range(1, int(handle.record["parts"]))]
        if first is not None and first.get("tether_lost"):
            return Lost("its host was lost")
        if first is not None and all(rest):
            self._forget(handle)
            return Exited(int(first["code"]), str(first["reason"]), bool(first["asked"]))
        contact = self._beat(handle)
        if any(each is not None and each.get("tether_lost") for each in rest) or _DEAD & set(contact.states):
            return self._later(handle, Lost("one of its hosts was lost"))
        if time.monotonic() - contact.heard > self._lease:
            return Lost(f"Ray has not answered for {self._lease:.0f} s")
        if first is not None:  # the story is over: the other hosts wait for stages that will not come
            self.stop(handle, 0.0, range(1, int(handle.record["parts"])))
        return Running()

    def stop(self, handle: Handle, grace: float, numbers: Sequence[int] | None = None) -> None:
        """See `Executor.stop`."""
        for number in numbers if numbers is not None else range(int(handle.record["parts"])):
            folder = _folder(handle, number)
            if folder.is_dir():
                with suppress(OSError):  # the keeper there writes the same record, perhaps at this moment
                    write_record(str(folder), "stop.json", {"grace": grace})
        self._link.ask("stop", attempt_id=handle.attempt_id, count=int(handle.record["parts"]), grace=grace)

    def kill(self, handle: Handle, timeout: float = 30.0) -> bool:
        """See `Executor.kill`. Proven by the records of every part, or by the lease having run out."""
        end = time.monotonic() + timeout
        count = int(handle.record["parts"])
        with suppress(ExecutorError):  # so that the end is on record as one that was asked for
            if not self._has_ended(handle):
                self.stop(handle, 0.0)
                self._until(lambda: self._has_ended(handle), min(2.0, timeout / 3))
        with suppress(ExecutorError):
            self._link.ask("kill", min(timeout, 20.0), attempt_id=handle.attempt_id, count=count)
        while not self._has_ended(handle):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        self._forget(handle)
        return True

    def reattach(self, record: Mapping[str, Any]) -> Handle | None:
        """See `Executor.reattach`."""
        place = Path(str(record["record"]))
        if (handle := self._on_record(place, str(record["attempt_id"]))) is not None:
            return handle
        folder = str(record.get("folder", ""))
        if os.path.isdir(folder):
            try:
                os.close(take_fence(folder, int(record["fencing_token"])))
            except FenceRefused:
                return self._on_record(place, str(record["attempt_id"]))
        return None

    def capacity(self) -> tuple[HostCapacity, ...]:
        """The cluster's nodes; those that were known before and cannot be reached now are not alive."""
        try:
            nodes = self._link.ask("nodes")
        except ExecutorError:
            self._hosts = tuple(
                HostCapacity(host.name, host.cpus, host.memory, host.gpus, alive=False) for host in self._hosts
            )
            return self._hosts
        self._nodes = {}
        hosts = []
        for node in nodes:
            name = f"{node['host']}-{node['id'][:8]}"
            if node["alive"]:
                self._nodes[name] = node["id"]
            hosts.append(
                HostCapacity(
                    name,
                    node["cpus"],
                    node["memory"],
                    tuple(Gpu(index, 0, node["kind"]) for index in range(node["gpus"])),
                    bool(node["alive"]),
                )
            )
        self._hosts = tuple(hosts)
        return self._hosts

    def logs(self, handle: Handle, after: int = 0) -> Iterator[bytes]:
        """See `Executor.logs`: what the first host's part printed."""
        return read_console(_folder(handle, 0), after)

    def close(self) -> None:
        """End the agent; what runs goes on for as long as its lease."""
        self._link.close()

    def _part(self, spec: AttemptSpec, number: int) -> dict[str, Any]:
        """What one host runs, and on which of the cluster's nodes."""
        place = spec.placements[number]
        host = next(host for host in self._hosts if host.name == place.host)
        part = part_of(spec, number, memory_limit(host, place, self._attempt_memory), self._wanted)
        return part | {"node": self._nodes[place.host], "secrets": dict(spec.secrets)}

    def _refuse_a_second(self, spec: AttemptSpec) -> None:
        for path in spec.record.parent.glob("*/ray.json"):
            other = self._on_record(path.parent, path.parent.name)
            if other is not None and other.attempt_id != spec.attempt_id and not self._has_ended(other):
                raise ExecutorError(f"another attempt of this job still runs: {other.attempt_id}")

    def _on_record(self, folder: Path, attempt_id: str) -> Handle | None:
        record = read_record(folder, "ray.json")
        if record is None or record["attempt_id"] != attempt_id:
            return None
        return Handle(self.name, attempt_id, int(record["fencing_token"]), record)

    def _beat(self, handle: Handle) -> Contact:
        """Ask the parts, at most every two seconds."""
        now = time.monotonic()
        contact = self._contacts.get(handle.attempt_id)
        if contact is None:
            contact = self._contacts[handle.attempt_id] = Contact(0.0, now)
        if now - contact.asked_at < min(BEAT, self._lease / 5):
            return contact
        contact.asked_at = now
        self._touch(handle)
        try:
            states = self._link.ask(
                "beat", timeout=30.0, attempt_id=handle.attempt_id, count=int(handle.record["parts"])
            )
        except ExecutorError:
            return contact
        if "unknown" not in states:
            self._heard(handle, states)
        return self._contacts[handle.attempt_id]

    def _heard(self, handle: Handle, states: Sequence[str]) -> None:
        now = time.monotonic()
        self._contacts[handle.attempt_id] = Contact(now, now, states)

    def _touch(self, handle: Handle) -> None:
        """Note, for whoever comes after, that a lease may have been renewed at this moment."""
        (_folder(handle, 0) / "beat").touch()

    def _later(self, handle: Handle, lost: Lost) -> Condition:
        """An actor that is gone because its part has just ended is no loss: its record may be a moment behind."""
        contact = self._contacts[handle.attempt_id]
        ended = read_record(_folder(handle, 0), "exit.json")
        if ended is not None and not ended.get("tether_lost") and time.monotonic() - contact.heard < 1.0:
            return Running()
        return lost

    @staticmethod
    def _until(condition: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            time.sleep(0.02)

    def _has_ended(self, handle: Handle) -> bool:
        """Whether nothing of it can live: every part that began left its last record, or its lease has run out."""
        if all((_folder(handle, number) / "exit.json").exists() for number in range(int(handle.record["parts"]))):
            return True
        try:
            renewed = (_folder(handle, 0) / "beat").stat().st_mtime
        except FileNotFoundError:
            return False
        return time.time() - renewed > float(handle.record["lease"]) * MARGIN + 5.0

    def _forget(self, handle: Handle) -> None:
        """Give the bundles back, once."""
        self._contacts.pop(handle.attempt_id, None)
        delete_secrets(_folder(handle, 0), parts=True)
        done = _folder(handle, 0) / "released"
        if done.exists():
            return
        try:
            self._link.ask("kill", 20.0, attempt_id=handle.attempt_id, count=int(handle.record["parts"]))
            done.touch()
        except ExecutorError:
            return


def _agent_environment() -> dict[str, str]:
    """The server's environment without its secrets, its database's password among them; Ray's own settings stay."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("RAY_") or not (name.startswith("FINERY_") or NAMES.search(name))
    }


def _folder(handle: Handle, number: int) -> Path:
    return part_folder(Path(str(handle.record["record"])), number)


def ray(settings: Any) -> Executor:
    """The executor for these settings. Raises CommandError for a cluster on the network that asks nobody for a
    token."""
    host = str(settings.ray_address).rpartition(":")[0]
    if host not in ("", "127.0.0.1", "localhost", "::1") and os.environ.get("RAY_AUTH_MODE") != "token":
        raise CommandError(
            f"the Ray cluster at {settings.ray_address} can be used by whoever reaches it; start it, and this "
            "server, with RAY_AUTH_MODE=token "
            "and the same RAY_AUTH_TOKEN_PATH"
        )
    return RayExecutor(str(settings.ray_address), isolation=settings.isolation, attempt_memory=settings.attempt_memory)
