"""The docker executor: one container per attempt, of the image that the service itself runs in.

The container is the kill unit: when its first process ends the engine kills the rest. It carries the attempt's id as
its name, so that a second start finds the first, and its job and token as labels. The engine keeps it over a restart
of the service. Its log is copied into the attempt's folder when it has ended; then it is removed.

`DockerClient` is a small client of the Docker Engine's HTTP API, over its unix socket or TCP. Names and shapes:
docs.docker.com/reference/api/engine.
"""

from __future__ import annotations

import http.client
import itertools
import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from service.executors.hosts import chosen, gpus_here, memory_limit
from service.executors.isolation import Isolation
from service.executors.process_tree import MARK
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
    Placement,
    Running,
    Sandbox,
)
from service.executors.records import (
    Console,
    FenceRefused,
    delete_secrets,
    read_console,
    read_record,
    secret_variables,
    take_fence,
    write_record,
    write_secrets,
)
from service.executors.sandbox import around

API = "v1.41"
"""Docker 20.10 (2020) and later speak it."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class EngineRefused(ExecutorError):
    """The engine answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"the Docker engine refused it ({status}): {message}")


class DockerClient:
    """One engine. Each call is one connection, so that it may be used from any thread."""

    def __init__(self, address: str = "unix:///var/run/docker.sock", timeout: float = 30.0) -> None:
        """`unix:///path` or `tcp://host:port` (without TLS: loopback or a tunnel only)."""
        self.address = address
        self._timeout = timeout

    def get(self, path: str, **query: Any) -> Any:
        """The JSON answer. Raises EngineRefused for a status of 400 and above, ExecutorError when nobody answers."""
        return self._json("GET", path, None, query)

    def post(self, path: str, body: object = None, **query: Any) -> Any:
        """The JSON answer, None for an empty one. 304 (already so) counts as done."""
        return self._json("POST", path, body, query)

    def delete(self, path: str, **query: Any) -> None:
        """Remove something."""
        self._json("DELETE", path, None, query)

    def logs(self, container: str) -> Iterator[bytes]:
        """What a container printed, both streams in order, without the frame headers of the engine."""
        connection, answer = self._ask("GET", f"/containers/{quote(container)}/logs", None, {"stdout": 1, "stderr": 1})
        try:
            while len(header := answer.read(8)) == 8:  # stream, three zeros, length: big-endian 32 bits
                yield answer.read(int.from_bytes(header[4:], "big"))
        finally:
            connection.close()

    def _json(self, verb: str, path: str, body: object, query: dict[str, object]) -> Any:
        connection, answer = self._ask(verb, path, body, query)
        try:
            text = answer.read()
            return json.loads(text) if text.strip() else None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ExecutorError(f"the Docker engine at {self.address} broke off its answer: {error}") from None
        finally:
            connection.close()

    def _ask(
        self, verb: str, path: str, body: object, query: dict[str, object]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = urlsplit(self.address)
        connection: http.client.HTTPConnection
        if parts.scheme == "unix":
            connection = _UnixConnection(parts.path, self._timeout)
        else:
            connection = http.client.HTTPConnection(
                parts.hostname or "localhost", parts.port or 2375, timeout=self._timeout
            )
        target = f"/{API}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            connection.request(
                verb, target, None if body is None else json.dumps(body), {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ExecutorError(
                f"no Docker engine answers at {self.address}: {error}; start it, or choose another executor"
            ) from None
        if answer.status >= 400:
            text = answer.read()
            connection.close()
            try:
                message = str(json.loads(text)["message"])
            except (ValueError, KeyError, TypeError):
                message = text.decode(errors="replace")[:200]
            raise EngineRefused(answer.status, message)
        return connection, answer


LABEL = "finery"
PIDS = 4096
"""Processes and threads of one container: far more than training needs, far less than a host has."""
PYTHON = "python"
"""The image's interpreter: what stands in the place of this machine's."""


class DockerExecutor:
    """Runs attempts as containers of one engine."""

    name = "docker"

    def __init__(
        self,
        engine: DockerClient,
        image: str,
        mounts: Sequence[str] = (),
        user: str = "",
        gpus: tuple[Gpu, ...] = (),
        network: str = "bridge",
        attempt_memory: int | None = 0,
    ) -> None:
        """`mounts` are `/host/path:/container/path[:ro]`, beside the places that each attempt names. `network` is one
        of the engine's.

        `attempt_memory` is as `Local` takes it.
        """
        self._engine = engine
        self._image = image
        self._mounts = list(mounts)
        self._user = user
        self._gpus = gpus
        self._network = network
        self._attempt_memory = attempt_memory
        self.isolation = Isolation("container")

    def start(self, spec: AttemptSpec) -> Handle:
        """See `Executor.start`."""
        name = container_name(spec.attempt_id)
        if (container := self._inspect(name)) is None:
            if (spec.record / "exit.json").exists():  # it ran, ended and was removed
                return self._handle(spec.attempt_id, spec.fencing_token, str(spec.record))
            spec.record.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._refuse_a_second(spec)
            try:
                os.close(take_fence(str(spec.folder), spec.fencing_token))
            except FenceRefused as error:
                raise ExecutorError(str(error)) from None
            write_secrets(spec.record, spec.secrets)
            try:
                self._engine.post("/containers/create", self._configuration(spec), name=name)
            except EngineRefused:
                delete_secrets(spec.record)
                raise
        elif container["State"]["Status"] != "created":
            return self._handle(spec.attempt_id, spec.fencing_token, str(spec.record))
        try:
            self._engine.post(f"/containers/{name}/start")
        except EngineRefused as error:
            self._remove(name)
            delete_secrets(spec.record)
            raise ExecutorError(f"the container could not be started: {error}") from None
        return self._handle(spec.attempt_id, spec.fencing_token, str(spec.record))

    def poll(self, handle: Handle) -> Condition:
        """See `Executor.poll`."""
        folder = Path(str(handle.record["record"]))
        if (ended := read_record(folder, "exit.json")) is not None:
            return Exited(int(ended["code"]), str(ended["reason"]), bool(ended["asked"]))
        name = str(handle.record["container"])
        container = self._inspect(name)
        if container is None:
            return Lost("its container is gone")
        state = container["State"]
        if state["Status"] in ("created", "running", "restarting", "paused", "removing"):
            stop = read_record(folder, "stop.json")
            if stop is not None and time.time() > stop["kill_at"]:
                self._signal(name, "SIGKILL")
            return Running(state.get("Pid") or None)
        if state["Status"] == "dead":
            return Lost("the engine could not remove its container")
        code = int(state["ExitCode"])
        ended = {
            "code": 128 - code if code > 128 else code,  # 137 is how the engine tells SIGKILL
            "reason": "out_of_memory" if state.get("OOMKilled") else "",
            "asked": (folder / "stop.json").exists(),
        }
        delete_secrets(folder)
        self._keep_log(name, folder)
        write_record(str(folder), "exit.json", ended)
        self._remove(name)
        return Exited(int(ended["code"]), str(ended["reason"]), bool(ended["asked"]))

    def stop(self, handle: Handle, grace: float) -> None:
        """See `Executor.stop`. `poll` sends the SIGKILL when the time is over, which begins once the engine took the
        SIGTERM."""
        folder = str(handle.record["record"])
        asked = read_record(folder, "stop.json")
        kill_at = math.inf if asked is None else float(asked["kill_at"])
        try:
            if asked is None:  # first of all: it may end at the signal
                write_record(folder, "stop.json", {"kill_at": kill_at})
            self._signal(str(handle.record["container"]), "SIGTERM")
            write_record(folder, "stop.json", {"kill_at": min(kill_at, time.time() + grace)})
        except OSError as error:
            raise ExecutorError(f"{folder} cannot be written: {error.strerror}") from None

    def kill(self, handle: Handle, timeout: float = 30.0) -> bool:
        """See `Executor.kill`."""
        name, folder = str(handle.record["container"]), Path(str(handle.record["record"]))
        end = time.monotonic() + timeout
        if not (folder / "exit.json").exists():
            write_record(str(folder), "stop.json", {"kill_at": 0.0})
        while (container := self._inspect(name)) is not None and container["State"]["Status"] not in ("exited", "dead"):
            self._signal(name, "SIGKILL")
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        delete_secrets(folder)
        return True

    def reattach(self, record: Mapping[str, Any]) -> Handle | None:
        """See `Executor.reattach`. A container that was made but not started is removed: it can start no more."""
        attempt_id, token = str(record["attempt_id"]), int(record["fencing_token"])
        folder = str(record["record"])
        container = self._inspect(container_name(attempt_id))
        if container is not None and container["State"]["Status"] == "created":
            self._remove(container_name(attempt_id))
            delete_secrets(folder)
            container = None
        if container is None and not os.path.exists(os.path.join(folder, "exit.json")):
            return None
        return self._handle(attempt_id, token, folder)

    def capacity(self) -> tuple[HostCapacity, ...]:
        """The engine's machine, as it describes itself."""
        about = self._engine.get("/info")
        return (HostCapacity(str(about["Name"]), int(about["NCPU"]), int(about["MemTotal"]), self._gpus),)

    def logs(self, handle: Handle, after: int = 0) -> Iterator[bytes]:
        """See `Executor.logs`."""
        folder = Path(str(handle.record["record"]))
        if (folder / "console").is_dir():
            yield from read_console(folder, after)
            return
        for chunk in self._engine.logs(str(handle.record["container"])):
            if after < len(chunk):
                yield chunk[after:]
            after = max(0, after - len(chunk))

    def close(self) -> None:
        """Nothing is held open."""

    def _handle(self, attempt_id: str, token: int, folder: str) -> Handle:
        record = {
            "attempt_id": attempt_id,
            "fencing_token": token,
            "container": container_name(attempt_id),
            "record": folder,
        }
        return Handle(self.name, attempt_id, token, record)

    def _configuration(self, spec: AttemptSpec) -> dict[str, Any]:
        """The body of `POST /containers/create`."""
        here = spec.placements[0] if spec.placements else Placement("")
        places = spec.sandbox or Sandbox(write=(str(spec.folder),))
        for path in (*places.write, *(path for path in places.read if path.endswith("/secrets"))):
            os.makedirs(path, mode=0o700, exist_ok=True)
        read = [
            path for path in places.read if os.path.exists(path)
        ]  # the engine would make a folder of what is missing
        mounts = [*self._mounts, *(f"{path}:{path}:ro" for path in read), *(f"{path}:{path}" for path in places.write)]
        memory = here.memory or (
            memory_limit(self.capacity()[0], here, None) if self._attempt_memory is None else self._attempt_memory
        )
        environment = {**spec.environment, **secret_variables(spec.record, spec.secrets), MARK: spec.attempt_id}
        for name in ("PATH", "HOME", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR"):  # the image has its own
            environment.pop(name, None)
        host: dict[str, Any] = {
            "Binds": list(dict.fromkeys(mounts)),
            "Init": True,
            "NetworkMode": self._network,
            "RestartPolicy": {"Name": "no"},
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "ShmSize": 1 << 30,
            "Memory": memory,
            "MemorySwap": memory,
            "PidsLimit": PIDS,
            "IpcMode": "private",
            "NanoCpus": here.cpus * 1_000_000_000,
            "LogConfig": {
                "Type": "json-file",
                "Config": {"max-size": str(spec.log_bytes), "max-file": str(spec.log_files)},
            },
        }
        if here.gpus:
            host["DeviceRequests"] = [
                {"Driver": "nvidia", "DeviceIDs": [str(index) for index in here.gpus], "Capabilities": [["gpu"]]}
            ]
        return {
            "Image": self._image,
            "Entrypoint": [PYTHON if spec.command[0].rpartition("/")[2].startswith("python") else spec.command[0]],
            "Cmd": list(spec.command[1:]),
            "WorkingDir": str(spec.folder),
            "User": self._user,
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "Labels": {
                LABEL: spec.attempt_id,
                f"{LABEL}.job": spec.job_id,
                f"{LABEL}.fencing": str(spec.fencing_token),
            },
            "HostConfig": host,
        }

    def _refuse_a_second(self, spec: AttemptSpec) -> None:
        wanted = json.dumps(
            {"label": [f"{LABEL}.job={spec.job_id}"], "status": ["running", "created", "paused", "restarting"]}
        )
        others = [
            container
            for container in self._engine.get("/containers/json", all=1, filters=wanted)
            if container["Labels"].get(LABEL) != spec.attempt_id
        ]
        if others:
            raise ExecutorError(
                f"another attempt of this job still runs in container {others[0]['Names'][0].lstrip('/')}"
            )

    def _inspect(self, name: str) -> dict[str, Any] | None:
        try:
            container: dict[str, Any] = self._engine.get(f"/containers/{name}/json")
        except EngineRefused as error:
            if error.status == 404:
                return None
            raise
        return container

    def _signal(self, name: str, which: str) -> None:
        try:
            self._engine.post(f"/containers/{name}/kill", signal=which)
        except EngineRefused as error:
            if error.status not in (404, 409):  # gone, or no longer running
                raise

    def _remove(self, name: str) -> None:
        try:
            self._engine.delete(f"/containers/{name}", force=1, v=1)
        except EngineRefused as error:
            if error.status not in (404, 409):
                raise

    def _keep_log(self, name: str, folder: Path) -> None:
        try:
            chunks = self._engine.logs(name)
            first = next(chunks, b"")
        except EngineRefused:  # a log driver that cannot be read
            return
        console = Console(str(folder / "console"), 1 << 40, 1)
        for chunk in itertools.chain([first], chunks):
            console.write(chunk)
        console.close()


def container_name(attempt_id: str) -> str:
    """The container of an attempt."""
    return f"finery-{attempt_id}"


def docker(settings: Any) -> Executor:
    """The executor for these settings. FINERY_DATA is mounted under the same paths; of the home, each attempt's
    own parts."""

    engine = DockerClient(settings.docker_host)
    gpus = gpus_here() if settings.gpus is None else chosen(gpus_here(), settings.gpus)
    roots = [
        part
        for root in os.environ.get("FINERY_DATA", "").split(os.pathsep)
        if root
        for part in around(root, [str(settings.home)])
    ]
    return DockerExecutor(
        engine,
        settings.image,
        [f"{root}:{root}:ro" for root in dict.fromkeys(roots)],
        user=f"{os.getuid()}:{os.getgid()}",
        gpus=gpus,
        network=settings.docker_network,
        attempt_memory=settings.attempt_memory,
    )
