"""The processes that serve models: one a model, started by the first question, ended when nobody asks any more.

At most `serve_models` live at once. When another model is asked, the one that was idle for longest makes room; while
all of them have open questions, the question is answered with 503. A process that crashes answers what it was asked
with 503 and is forgotten: the next question starts another. A model that cannot be opened is not tried again for a
minute, so that questions to it cost nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pipelines.core.errors import CommandError
from service.api.problems import Problem
from service.attempts.preparing import PIPELINES
from service.executors.hosts import this_host
from service.executors.isolation import isolation_of
from service.executors.local import LocalExecutor
from service.executors.records import delete_folder
from service.serving.process import ModelProcess
from service.serving.questions import Gone, Question
from service.settings import Settings
from service.store.results import PublishedModel

FAILED_SECONDS = 60.0
LOOK_SECONDS = 1.0
"""How often idle processes are looked for."""
WAIT_SECONDS = 290.0
"""How long a question waits for a process to open its model."""


class ModelProcesses:
    """Those of one server. Any thread and any event loop may ask."""

    def __init__(self, settings: Settings, pipelines: Sequence[str] = PIPELINES) -> None:
        """Starts nothing yet. `pipelines` is what runs them."""
        self._settings, self._pipelines = settings, pipelines
        self._executor: LocalExecutor | None = None
        self._processes: dict[str, ModelProcess] = {}
        """By model; those that are ending are not among them."""
        self._living: set[ModelProcess] = set()
        self._failed: dict[str, tuple[float, str]] = {}
        self._asking: Counter[str] = Counter()
        self.most: dict[str, int | None] = {}
        """Project -> how many processes it may have at once, as it was when it last asked; None for no limit."""
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @asynccontextmanager
    async def question(
        self, token: str, model: PublishedModel, do: str, fields: Mapping[str, Any]
    ) -> AsyncIterator[Question]:
        """A question to a model, whose process is started where it does not run. Raises Problem."""
        with self._lock:
            if self._asking[token] >= self._settings.serve_requests:
                raise Problem(
                    429,
                    f"This token has {self._settings.serve_requests} open questions to models; wait for their answers.",
                    "rate_limited",
                    headers={"Retry-After": "1"},
                )
            self._asking[token] += 1
        try:
            process, question = await self._ask(model, do, fields)
            try:
                yield question
            finally:
                process.leave(question)
        finally:
            with self._lock:
                self._asking[token] -= 1
                if not self._asking[token]:
                    del self._asking[token]

    def living(self) -> list[ModelProcess]:
        """The processes that are started, those that are ending among them."""
        with self._lock:
            return list(self._living)

    def forget(self, model_id: str) -> None:
        """The model was deleted: its process ends."""
        with self._lock:
            process = self._processes.get(model_id)
            if process is not None:
                self._stop(process, "the model was deleted")

    def close(self) -> None:
        """End them all, and wait until they are gone."""
        self._closed.set()
        for process in self.living():
            process.stop("the server stops")
        end = time.monotonic() + 40
        while self.living() and time.monotonic() < end:
            time.sleep(0.02)
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    async def _ask(self, model: PublishedModel, do: str, fields: Mapping[str, Any]) -> tuple[ModelProcess, Question]:
        """The question, sent. Raises Problem."""
        why = ""
        for _ in range(2):  # a process may have been idle for too long just now
            process = await self._ready(model)
            try:
                return process, process.ask(do, fields)
            except Gone as gone:
                why = str(gone)
        raise _unavailable(why)

    async def _ready(self, model: PublishedModel) -> ModelProcess:
        """The model's process, open. Raises Problem."""
        process = await asyncio.to_thread(self._started, model)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await asyncio.shield(asyncio.wrap_future(process.ready))
        except TimeoutError:
            raise _unavailable(f"The model '{model.name}' is still being opened; ask again.") from None
        except Gone as gone:
            raise _unopened(model, str(gone)) from None
        return process

    def _started(self, model: PublishedModel) -> ModelProcess:
        """The model's process, perhaps still being started. Raises Problem."""
        with self._lock:
            failed, why = self._failed.get(model.id, (0.0, ""))
            if why and time.monotonic() - failed < FAILED_SECONDS:
                raise _unopened(model, why)
            if (process := self._processes.get(model.id)) is not None:
                return process
            if self._closed.is_set():
                raise _unavailable("The server stops.")
            if self._settings.serve_models == 0:
                raise Problem(403, "This server serves no models (FINERY_SERVE_MODELS=0).", "not_served")
            self._hold_project(model)
            self._make_room(model)
            executor = self._executor or self._begin()
            process = self._processes[model.id] = ModelProcess(
                self._settings, executor, model, self._ended, self._pipelines
            )
            self._living.add(process)
            return process

    def _stop(self, process: ModelProcess, why: str) -> None:
        """End a process, with the lock held; the next question starts another."""
        process.stop(why)
        self._processes.pop(process.model.id, None)

    def _hold_project(self, model: PublishedModel) -> None:
        """Keep a project within its limit: the one of its processes that was idle for longest ends. Raises Problem."""
        most = self.most.get(model.project)
        mine = [each for each in self._processes.values() if each.model.project == model.project]
        if most is None or len(mine) < most:
            return
        idle = [each for each in mine if each.ready.done() and not each.open_questions]
        if most == 0 or not idle:
            raise Problem(
                429,
                f"Project '{model.project}' may have {most} processes at once (max_running), for models that are asked "
                "as for jobs; wait until one is idle, or ask an admin for more.",
                "quota_exceeded",
                headers={"Retry-After": "5"},
            )
        self._stop(min(idle, key=lambda each: each.used), f"'{model.name}' takes its place; ask again")

    def _make_room(self, model: PublishedModel) -> None:
        """End the process that was idle for longest, where there are as many as there may be. Raises Problem."""
        if len(self._processes) < self._settings.serve_models:
            return
        idle = [each for each in self._processes.values() if each.ready.done() and not each.open_questions]
        if not idle:
            raise _unavailable(
                f"{len(self._processes)} models are being asked, as many as this server serves at once "
                f"(FINERY_SERVE_MODELS); ask '{model.name}' again when one of them is idle."
            )
        self._stop(min(idle, key=lambda each: each.used), f"'{model.name}' takes its place; ask again")

    def _begin(self) -> LocalExecutor:
        """With the first question: the executor, and the thread that looks for idle processes."""
        settings = self._settings
        delete_folder(settings.serving)  # of a server that was killed, its processes with it
        settings.serving.mkdir(parents=True, mode=0o700)
        try:
            host = this_host(gpus=settings.serve_gpus)
            isolation = isolation_of(settings.isolation)
        except CommandError as error:
            raise Problem(503, str(error), "not_served") from None
        self._executor = LocalExecutor(host, tethered=True, isolation=isolation)
        threading.Thread(target=self._look, name="idle models", daemon=True).start()
        return self._executor

    def _look(self) -> None:
        while not self._closed.wait(min(LOOK_SECONDS, self._settings.serve_idle / 4)):
            with self._lock:
                long = time.monotonic() - self._settings.serve_idle
                for each in list(self._processes.values()):
                    if each.ready.done() and not each.open_questions and each.used < long:
                        self._stop(each, "nobody asked it; ask again")

    def _ended(self, process: ModelProcess) -> None:
        failed = process.ready.exception()
        with self._lock:
            self._living.discard(process)
            if self._processes.get(process.model.id) is process:
                del self._processes[process.model.id]
            if failed is not None and not self._closed.is_set():
                now = time.monotonic()
                self._failed = {key: each for key, each in self._failed.items() if now - each[0] < FAILED_SECONDS}
                self._failed[process.model.id] = (now, str(failed))


def _unopened(model: PublishedModel, why: str) -> Problem:
    return Problem(503, f"The model '{model.name}' cannot be opened: {why}", "model_not_served")


def _unavailable(why: str) -> Problem:
    return Problem(503, f"{why[:1].upper()}{why[1:]}", "model_not_ready", headers={"Retry-After": "5"})
