"""One process that serves one published model: its start, its socket, its questions, its end.

It runs `python -m pipelines serve-model` as the local executor runs an attempt: by the same launcher, in the same
isolation, with a bound on its memory, and tied to this server, so that the kernel ends it when the server dies. It sees
the model's folder, and writes in a folder of its own, where the server listens for its one connection.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from service.attempts.environment import inherited
from service.attempts.preparing import PIPELINES, sandbox_around
from service.executors.hosts import cores_here
from service.executors.local import LocalExecutor
from service.executors.protocol import AttemptSpec, ExecutorError, Handle, Placement, Running
from service.executors.records import delete_folder, read_console
from service.jobs.job import new_id
from service.serving.questions import ProcessEnded, Question
from service.settings import Settings
from service.store.models import PublishedModel

START_SECONDS = 300.0
"""How long a process may open its model."""
LONGEST_LINE = 64 << 20
LOG_BYTES = 1 << 20
BASE_MEMORY, MEMORY_FACTOR = 4 << 30, 4
"""Bytes for the libraries and for keys and values, and what is read of the files, which may hold halves of numbers."""
log = logging.getLogger(__name__)


def bare_environment(work: Path, executor: LocalExecutor) -> dict[str, str]:
    """The variables of a process that reads published models and may write in `work`: the server's own, no data, no
    Hub. Isolated ones have the same: a warm interpreter serves them all."""
    hub = "/tmp/hub" if executor.isolation.kept else str(work / "hub")
    return {
        **{name: value for name, value in inherited(os.environ).items() if name != "FINERY_DATA"},
        "FINERY_HOME": str(work / "home"),
        "HF_HOME": hub,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "NETRC": os.devnull,
    }


TIMED_OUT = "Timeout ("
"""How the last words of a process begin that `faulthandler` ended, as `pipelines.data.chat_prompts` has it do."""


class ModelProcess:
    """A process, from its start on."""

    def __init__(
        self,
        settings: Settings,
        executor: LocalExecutor,
        model: PublishedModel,
        ended: Callable[[ModelProcess], None],
        pipelines: Sequence[str] = PIPELINES,
        beside: Sequence[PublishedModel] = (),
        key: str = "",
    ) -> None:
        """Starts it, in a thread. `ended` is called once, when it has ended, whatever the reason. `pipelines` is what
        runs it; `beside` are models whose adapters stand on the same base, and `key` what they have in common."""
        self._pipelines = tuple(pipelines)
        self.id = new_id("serving")
        self.model = model
        self.beside = tuple(beside)
        self.key = key or model.id
        self.ready: Future[dict[str, Any]] = Future()
        """What the process says of the model when it is open: `kind`, `can`, `engine`, `why`, `context`. Else
        ProcessEnded."""
        self.used = time.monotonic()
        """When its last question ended."""
        self.started = time.time()
        self._settings, self._executor, self._ended = settings, executor, ended
        self._folder = settings.serving / self.id
        self._questions: dict[int, Question] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._outbox: queue.Queue[bytes | None] = queue.Queue()
        self._connection: socket.socket | None = None
        self._handle: Handle | None = None
        self._closing = ""
        threading.Thread(target=self._live, name=f"serving {model.name}", daemon=True).start()

    @property
    def open_questions(self) -> int:
        """How many questions wait for their end."""
        return len(self._questions)

    @property
    def pid(self) -> int | None:
        """The id of its first process, for those who look."""
        return None if self._handle is None else int(self._handle.record["child_pid"])

    @property
    def models(self) -> set[str]:
        """The ids of the models that can be asked: those that were meant to be, until it says which it could open."""
        meant = {self.model.id, *(each.id for each in self.beside)}
        if not self.ready.done() or self.ready.exception() is not None:
            return meant
        return meant & {self.model.id, *map(str, self.ready.result().get("models") or ())}

    def ask(self, model: PublishedModel, do: str, fields: Mapping[str, Any]) -> Question:
        """Send a question to a process that is ready. Raises ProcessEnded."""
        with self._lock:
            if self._closing:
                raise ProcessEnded(self._closing)
            self._count += 1
            question = self._questions[self._count] = Question(self._count)
        self._send({"id": question.number, "do": do, **fields, **({"model": model.id} if self.beside else {})})
        return question

    def leave(self, question: Question) -> None:
        """Nobody waits for the answer any more: what is still being written is cancelled."""
        with self._lock:
            self._questions.pop(question.number, None)
            self.used = time.monotonic()
        if not question.over:
            self._send({"cancel": question.number})

    def stop(self, why: str) -> None:
        """End it. Returns at once; what waits is answered with `why`."""
        with self._lock:
            self._closing = self._closing or why
        self._outbox.put(None)
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def _send(self, message: Mapping[str, Any]) -> None:
        self._outbox.put(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    # ---- its life, in a thread of its own ----------------------------------------------------------------------------

    def _live(self) -> None:
        why = ""
        try:
            why = self._serve()
        except (OSError, ExecutorError, ValueError) as error:
            why = f"the process could not be started: {error}"
        except Exception:
            log.exception("serving %s failed", self.model.name)
            why = "the process could not be started"
        finally:
            self._over(self._closing or why or "the process that serves the model ended; ask again")

    def _serve(self) -> str:
        """Start the process and pass on what it says. Returns why it ended, as far as it says so."""
        work, record = self._folder / "work", self._folder / "record"
        work.mkdir(parents=True, mode=0o700)
        key = secrets.token_hex(32)
        with _listening(work) as listener:
            self._handle = self._executor.start(self._spec(work, record, key))
            connection = self._accepted(listener)
        if connection is None:
            return self._last_words()
        with self._lock:  # who stops it now shuts the connection; who stopped it just before found none to shut
            self._connection = connection
            if self._closing:
                connection.close()
                return self._closing
        with connection, connection.makefile("rb") as lines:
            message = _read(lines)[0]
            if not secrets.compare_digest(str((message or {}).get("key")), key):
                return "the process did not know its key"
            message = _read(lines)[0] or {}
            if not isinstance(message.get("ready"), dict):
                return str(message.get("failed") or self._last_words())[:1000]
            threading.Thread(target=self._write, args=(connection,), name="questions", daemon=True).start()
            self.used = time.monotonic()
            self.ready.set_result(message["ready"])
            self._executor.keep_warm(self._handle)
            log.info("%s is served (%s)", self.model.name, message["ready"].get("engine"))
            while True:
                message, size = _read(lines)
                if message is None:
                    return self._last_words()
                if "failed" in message:
                    return str(message["failed"])[:1000]
                question = self._questions.get(message["id"]) if isinstance(message.get("id"), int) else None
                if question is not None and not question.arrive(message, size):
                    return "an answer grew too large"

    def _spec(self, work: Path, record: Path, key: str) -> AttemptSpec:
        host = self._executor.capacity()[0]
        folder = Path(self.model.path)
        others = {each.id: Path(each.path) for each in self.beside}
        memory = self._settings.serve_memory
        if memory is None:
            size = _bytes(folder) + sum(_bytes(each) - _bytes(each / "base") for each in others.values())
            memory = BASE_MEMORY + MEMORY_FACTOR * size
        environment = bare_environment(work, self._executor)
        environment.setdefault("OMP_NUM_THREADS", str(cores_here()))
        request: dict[str, Any] = {"model": str(folder), "socket": SOCKET}
        if others:
            request |= {"name": self.model.id, "beside": {name: str(each) for name, each in others.items()}}
        return AttemptSpec(
            attempt_id=self.id,
            job_id=self.id,
            fencing_token=1,
            command=(*self._pipelines, "serve-model", json.dumps(request)),
            folder=work,
            record=record,
            environment=environment,
            secrets={"SERVE_KEY": key},
            placements=(Placement(host.name, tuple(gpu.index for gpu in host.gpus), host.cpus, memory),),
            fence=self._folder,
            log_bytes=LOG_BYTES,
            log_files=1,
            sandbox=sandbox_around(self._settings, [folder, *others.values(), record / "secrets"], [work]),
        )

    def _accepted(self, listener: socket.socket) -> socket.socket | None:
        """The process's connection; None where it ended, took too long, or is to be stopped."""
        assert self._handle is not None
        listener.settimeout(0.2)
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and not self._closing:
            try:
                connection = listener.accept()[0]
            except TimeoutError:
                if not isinstance(self._executor.poll(self._handle), Running):
                    return None
                continue
            connection.settimeout(None)
            return connection
        return None

    def _write(self, connection: socket.socket) -> None:
        while (line := self._outbox.get()) is not None:
            try:
                connection.sendall(line)
            except OSError:
                return

    def _last_words(self) -> str:
        """The last line that the process printed, in the words of the command's errors."""
        printed = b"".join(read_console(self._folder / "record")).decode(errors="replace")
        if any(line.startswith(TIMED_OUT) for line in printed.splitlines()):
            return "the model's chat template ran for too long, and could be ended with the process alone"
        lines = [line.removeprefix("finery: ") for line in printed.splitlines() if line.startswith("finery: ")]
        return lines[-1][:1000] if lines else ""

    def _over(self, why: str) -> None:
        """Make sure that nothing of it is left, then tell all who wait."""
        self._outbox.put(None)
        ran_out = False
        if self._handle is not None:
            with suppress(ExecutorError):
                self._executor.kill(self._handle, 30.0)
            with suppress(OSError, ValueError):
                exit_record = json.loads((self._folder / "record" / "exit.json").read_text())
                ran_out = exit_record.get("reason") == "out_of_memory"
        if ran_out:
            why = "the process that serves the model ran out of memory (FINERY_SERVE_MEMORY bounds it); ask for less"
        delete_folder(self._folder)
        with self._lock:
            self._closing = self._closing or why
            waiting = list(self._questions.values())
        if not self.ready.done():
            self.ready.set_exception(ProcessEnded(why))
        for each in waiting:
            if not each.over:
                each.arrive({"error": {"message": why, "code": "model_process_ended", "status": 503}}, 0)
        log.info("%s is served no more: %s", self.model.name, why)
        self._ended(self)


SOCKET = "socket"


def _bytes(folder: Path) -> int:
    """Of the files of a folder; links lead elsewhere."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _listening(folder: Path) -> socket.socket:
    """A listening socket in a folder whose path may be longer than the name of a socket can be."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if not os.path.isdir("/proc/self/fd"):
        listener.bind(str(folder / SOCKET))
    else:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            listener.bind(f"/proc/self/fd/{place}/{SOCKET}")
        finally:
            os.close(place)
    listener.listen(1)
    return listener


def _read(lines: Any) -> tuple[dict[str, Any] | None, int]:
    """The next object and its bytes; None at the end, and for what is none."""
    try:
        line = lines.readline(LONGEST_LINE)
        message = json.loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError, RecursionError):
        return None, 0
    return (message, len(line)) if isinstance(message, dict) else (None, 0)
