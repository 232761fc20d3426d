"""The local executor: a supervised process tree per attempt on this machine, which outlives the service.

`launcher` is the process in between. This side starts it, reads what it wrote, and, when the launcher itself was
killed, finds and kills whatever is left: by the attempt's cgroup where there is one, and by the mark that every
process of an attempt carries in its environment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from service.executors.hosts import memory_limit, this_host
from service.executors.isolation import NONE, Isolation, isolation_of, plan_of
from service.executors.process_tree import MARK, boot_id, kill_cgroup, start_time
from service.executors.protocol import (
    AttemptSpec,
    Condition,
    Executor,
    ExecutorError,
    Exited,
    Handle,
    HostCapacity,
    Lost,
    Running,
    Sandbox,
)
from service.executors.records import (
    FenceRefused,
    delete_folder,
    delete_secrets,
    read_console,
    read_record,
    secret_variables,
    take_fence,
    write_record,
)
from service.executors.warm import WarmInterpreters

START_TIMEOUT = 30.0
LAUNCH = "import sys; sys.path.insert(0, sys.argv[1]); from service.executors.launcher import main; sys.exit(main())"
ROOT = str(Path(__file__).resolve().parents[2])
"""Where the launcher finds its modules: it is started without the paths that a Python usually has."""
_PAUSE = 0.005


class LocalExecutor:
    """Runs attempts on this machine."""

    name = "local"

    def __init__(
        self,
        host: HostCapacity | None = None,
        cgroups: bool = True,
        tethered: bool = False,
        isolation: Isolation = NONE,
        attempt_memory: int | None = 0,
        warm: int = 0,
    ) -> None:
        """`host` is found when not given; `cgroups=False` relies on sessions and marks alone, as machines without
        cgroup v2 must.

        With `tethered`, what it starts ends with this process. `attempt_memory` limits the attempts that name no
        limit: None for their share of the host, 0 for no limit. `warm` interpreters are kept for attempts to come.
        """
        self._host = host or this_host()
        self.isolation = isolation
        self._attempt_memory = attempt_memory
        self._cgroups = cgroups
        self._python: tuple[str, ...] = (sys.executable, "-I", "-S")
        self._tether = os.pipe() if tethered else None
        self._warm = WarmInterpreters(warm)

    def start(self, spec: AttemptSpec) -> Handle:
        """See `Executor.start`. Returns once the child is on record, usually within 50 ms."""
        if (handle := self._on_record(spec.record, spec.attempt_id)) is not None:
            return handle
        try:
            spec.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            spec.record.mkdir(parents=True, exist_ok=True, mode=0o700)
            record = self._launch(spec)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise ExecutorError(f"the launcher could not be started: {error}") from None
        if "error" in record:  # a service that was killed at this point may have started it a moment ago
            if (handle := self._on_record(spec.record, spec.attempt_id)) is not None:
                return handle
            raise ExecutorError(str(record["error"]))
        return Handle(self.name, spec.attempt_id, spec.fencing_token, record)

    def poll(self, handle: Handle) -> Condition:
        """See `Executor.poll`. Costs two system calls for an attempt that runs."""
        ended = _read(handle, "exit.json")
        if ended is None and _alive(handle.record, "launcher"):
            return Running(int(handle.record["child_pid"]))
        if ended is not None or (ended := _read(handle, "exit.json")) is not None:  # the latter was written since
            (self._warm.make_for if self._tether is None else self._warm.forget)(handle.attempt_id)
            return _exited(ended)
        return Lost("its launcher was killed, or the machine was started anew")

    def stop(self, handle: Handle, grace: float) -> None:
        """See `Executor.stop`."""
        folder = str(handle.record["record"])
        if os.path.exists(os.path.join(folder, "exit.json")):
            return
        with suppress(OSError):
            write_record(folder, "stop.json", {"grace": grace})
        _signal(handle.record, "launcher", signal.SIGTERM)

    def kill(self, handle: Handle, timeout: float = 30.0) -> bool:
        """See `Executor.kill`. The launcher does it while it lives, so that the end is on record; else this
        process does."""
        end = time.monotonic() + timeout
        if self._tether is not None:
            self._warm.forget(handle.attempt_id)
        if handle.record["boot"] != boot_id() or _read(handle, "exit.json") is not None:
            delete_secrets(str(handle.record["record"]))
            return True
        self.stop(handle, 0.0)
        while _alive(handle.record, "launcher") and time.monotonic() < end - timeout / 2:
            time.sleep(_PAUSE)
        if _read(handle, "exit.json") is not None:
            return True
        while _alive(handle.record, "launcher"):  # it is frozen, or its disk is full
            _signal(handle.record, "launcher", signal.SIGKILL)
            if time.monotonic() > end:
                return False
            time.sleep(_PAUSE)
        if not _sweep(handle, end):
            return False
        delete_secrets(str(handle.record["record"]))
        return True

    def reattach(self, record: Mapping[str, Any]) -> Handle | None:
        """See `Executor.reattach`. `record` may be as little as the attempt's token and the folders `record` and
        `folder`.

        A launcher that is only now being born would be missed: its fence is taken here, so that it gives up.
        """
        place, attempt_id = Path(str(record["record"])), str(record["attempt_id"])
        handle = self._on_record(place, attempt_id)
        folder = str(record.get("folder", ""))
        if handle is not None or not os.path.isdir(folder):
            return handle
        try:
            os.close(take_fence(folder, int(record["fencing_token"])))
        except FenceRefused:
            return self._on_record(place, attempt_id)
        delete_secrets(place)
        return None

    def capacity(self) -> tuple[HostCapacity, ...]:
        """This machine."""
        return (self._host,)

    def logs(self, handle: Handle, after: int = 0) -> Iterator[bytes]:
        """See `Executor.logs`."""
        return read_console(Path(str(handle.record["record"])), after)

    def keep_warm(self, handle: Handle) -> None:
        """The attempt goes on and no longer needs the processor: keep an interpreter for others of its kind."""
        self._warm.make_for(handle.attempt_id)

    def close(self) -> None:
        """What is tethered ends here; everything else goes on."""
        self._warm.close()
        if self._tether is not None:
            for descriptor in self._tether:
                os.close(descriptor)
            self._tether = None

    def _on_record(self, folder: Path, attempt_id: str) -> Handle | None:
        record = read_record(folder, "launcher.json")
        if record is None or record["attempt_id"] != attempt_id:
            return None
        return Handle(self.name, attempt_id, int(record["fencing_token"]), record)

    def _launch(self, spec: AttemptSpec) -> dict[str, Any]:
        here = next((part for part in spec.placements if part.host == self._host.name), None)
        if spec.placements and (here is None or len(spec.placements) > 1):
            hosts = ", ".join(part.host for part in spec.placements)
            raise ValueError(f"the local executor runs on {self._host.name} alone, the attempt was placed on {hosts}")
        environment = {**spec.environment, **secret_variables(spec.record, spec.secrets), MARK: spec.attempt_id}
        if here is not None and (here.gpus or self._host.gpus):
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in here.gpus)
        memory = memory_limit(self._host, here, self._attempt_memory)
        request = {
            "attempt_id": spec.attempt_id,
            "fencing_token": spec.fencing_token,
            "command": list(spec.command),
            "folder": str(spec.folder),
            "record": str(spec.record),
            "environment": environment,
            "secrets": dict(spec.secrets),
            "log_bytes": spec.log_bytes,
            "log_files": spec.log_files,
            "memory": memory,
            "cgroups": self._cgroups,
            "fence": str(spec.fence or spec.folder),
            "tether": self._tether[0] if self._tether is not None else None,
        }
        if self.isolation.kept:
            places = spec.sandbox or Sandbox(write=(str(spec.folder),))
            request["sandbox"] = plan_of(self.isolation, places, environment, memory)
        content = json.dumps(request).encode()
        answer = self._warm.launch(request, content, self._tether[0] if self._tether is not None else None)
        if answer is not None:
            forked: dict[str, Any] = json.loads(answer)
            return forked
        started = subprocess.run(
            (*self._python, "-c", LAUNCH, ROOT),
            input=content,
            capture_output=True,
            timeout=START_TIMEOUT,
            check=False,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
            cwd="/",
            pass_fds=self._tether[:1] if self._tether is not None else (),
        )
        if not started.stdout.strip():
            errors = started.stderr.decode(errors="replace").strip().splitlines()
            raise ValueError(errors[-1] if errors else f"it ended with code {started.returncode}")
        record: dict[str, Any] = json.loads(started.stdout)
        return record


def _read(handle: Handle, name: str) -> dict[str, Any] | None:
    return read_record(str(handle.record["record"]), name)


def _exited(ended: Mapping[str, Any]) -> Condition:
    if ended.get("tether_lost"):
        return Lost("who kept it on its host is gone")
    return Exited(int(ended["code"]), str(ended.get("reason", "")), bool(ended.get("asked", False)))


def _alive(record: Mapping[str, Any], who: str) -> bool:
    """Whether this very process lives: same boot, same id, same start time, no zombie."""
    start = start_time(int(record[f"{who}_pid"]))
    return start != 0 and start == record[f"{who}_start"] and record["boot"] == boot_id()


def _signal(record: Mapping[str, Any], who: str, number: int) -> None:
    """Signal this very process: a descriptor cannot come to mean another one between the look and the signal."""
    try:
        descriptor = os.pidfd_open(int(record[f"{who}_pid"]))
    except OSError:
        return
    try:
        if _alive(record, who):
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def marked(attempt_id: str) -> list[int]:
    """Every living process that carries the attempt's mark in its environment."""
    mark = f"{MARK}={attempt_id}".encode()
    pids = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0") and start_time(int(name)):
                    pids.append(int(name))
        except OSError:
            continue
    return pids


def _sweep(handle: Handle, end: float) -> bool:
    """Kill what a dead launcher left, and wait until nothing of it is found. At least one look, whatever the time."""
    cgroup = str(handle.record.get("cgroup", ""))
    while True:
        gone = not cgroup or kill_cgroup(cgroup, max(0.05, end - time.monotonic()))
        if _alive(handle.record, "child"):
            _signal(handle.record, "child", signal.SIGKILL)
            gone = False
        for pid in marked(handle.attempt_id):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            gone = False
        if gone:
            for folder in handle.record.get("private", ()):
                delete_folder(folder)
        if gone or time.monotonic() > end:
            return gone
        time.sleep(_PAUSE)


def local(settings: Any) -> Executor:
    """The executor for these settings: of the machine, what they allow."""
    host = this_host(cpus=settings.cpus, memory=settings.memory, gpus=settings.gpus)
    return LocalExecutor(
        host, isolation=isolation_of(settings.isolation), attempt_memory=settings.attempt_memory, warm=settings.warm
    )
