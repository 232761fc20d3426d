"""The processes that serve models: one a model, started by the first question, ended when nobody asks any more.

At most `serve_models` live at once. When another model is asked, the one that was idle for longest makes room; while
all of them have open questions, the question is answered with 503. A process that crashes answers what it was asked
with 503 and is forgotten: the next question starts another. A model that cannot be opened is not tried again for a
minute, so that questions to it cost nothing.

Models of one project that are adapters on the same base, byte for byte, have one process together, which holds one
copy of the base (`pipelines.core.shared_bases`). It knows those that were published when it was started: a newer one
brings a new process for all of them, and the older one ends when its last question does.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipelines.core.errors import CommandError
from pipelines.core.shared_bases import shared_base
from service.api.problems import Problem
from service.attempts.preparing import PIPELINES
from service.executors.hosts import this_host
from service.executors.isolation import isolation_of
from service.executors.local import LocalExecutor
from service.executors.records import delete_folder
from service.serving.metrics import ServingMetrics
from service.serving.process import ModelProcess
from service.serving.questions import ProcessEnded, Question
from service.settings import Settings
from service.store.models import PublishedModel

FAILED_SECONDS = 60.0
MOST_ADAPTERS = 31
"""Models beside the one that was asked, in one process: the newest ones."""
LOOK_SECONDS = 1.0
"""How often idle processes are looked for."""
WAIT_SECONDS = 290.0
"""How long a question waits for a process to open its model."""


@dataclass(frozen=True)
class ServingState:
    """How far a model's process is."""

    name: Literal["asleep", "starting", "ready", "failed"]
    seconds: float = 0.0
    """Since it was started, or since it could not be opened."""
    why: str = ""
    """Why the model cannot be opened."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What the process says of the model when it is ready. It is not trusted."""


class ModelProcesses:
    """Those of one server. Any thread and any event loop may ask."""

    def __init__(
        self,
        settings: Settings,
        pipelines: Sequence[str] = PIPELINES,
        siblings: Callable[[str], Sequence[PublishedModel]] = lambda project: (),
        most_of: Callable[[str], int | None] = lambda project: None,
    ) -> None:
        """Starts nothing yet. `pipelines` is what runs them, `siblings` gives the newest models of a project, `most_of`
        how many processes it may have at once now, None for no limit."""
        self._settings, self._pipelines, self._siblings, self._most_of = settings, pipelines, siblings, most_of
        self._executor: LocalExecutor | None = None
        self._processes: dict[str, ModelProcess] = {}
        """By model, or by what adapters on one base have in common; those that are ending are not among them."""
        self._leaving: list[ModelProcess] = []
        """Those that others took the place of, and that still answer."""
        self._living: set[ModelProcess] = set()
        self._failed: dict[str, tuple[float, str]] = {}
        self._asking: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.metrics = ServingMetrics(self._states)

    @asynccontextmanager
    async def question(
        self, token: str, model: PublishedModel, do: str, fields: Mapping[str, Any]
    ) -> AsyncIterator[Question]:
        """A question to a model, whose process is started where it does not run. Raises Problem."""
        self._take_place(token, do)
        try:
            process, question = await self._counted(model, do, fields)
            try:
                yield question
            finally:
                process.leave(question)
                self.metrics.ended(do, question)
        finally:
            with self._lock:
                self._asking[token] -= 1
                if not self._asking[token]:
                    del self._asking[token]

    def _take_place(self, token: str, do: str) -> None:
        """Count a token's open question. Raises Problem where it has as many as it may."""
        with self._lock:
            if self._asking[token] >= self._settings.serve_requests:
                problem = Problem(
                    429,
                    f"This token has {self._settings.serve_requests} open questions to models; wait for their answers.",
                    "rate_limited",
                    headers={"Retry-After": "1"},
                )
                self.metrics.refused(do, problem)
                raise problem
            self._asking[token] += 1

    @property
    def seconds(self) -> float:
        """How long one question may take."""
        return self._settings.serve_seconds

    def begin(self, model: PublishedModel) -> None:
        """Start the process of a model's page, where it does not run, and ask nothing yet. Raises Problem."""
        self._started(model, alone=True)

    def state(self, model: PublishedModel) -> ServingState:
        """How far the process of a model's page is."""
        with self._lock:
            process = self._processes.get(model.id)
            if process is None:
                failed, why = self._failed.get(model.id, (0.0, ""))
                seconds = time.monotonic() - failed
                return (
                    ServingState("failed", seconds, why) if why and seconds < FAILED_SECONDS else ServingState("asleep")
                )
            if not process.ready.done():
                return ServingState("starting", max(0.0, time.time() - process.started))
            failure = process.ready.exception()
            if failure is not None:
                return ServingState("failed", why=str(failure))
            return ServingState("ready", about=process.ready.result())

    async def about(self, model: PublishedModel) -> Mapping[str, Any]:
        """What the process of the model's page says of it, which is started where it does not run. Raises Problem."""
        process = await self._ready(model, alone=True)
        return process.ready.result()

    def living(self) -> list[ModelProcess]:
        """The processes that are started, those that are ending among them."""
        with self._lock:
            return list(self._living)

    def answers(self, model_id: str) -> bool:
        """Whether a question to the model is open now."""
        with self._lock:
            every = [*self._processes.values(), *self._leaving]
            return any(model_id in each.models and each.open_questions > 0 for each in every)

    def executor(self) -> LocalExecutor:
        """What starts processes that open models, isolated as those that serve them are. Raises Problem."""
        with self._lock:
            return self._executor or self._begin()

    def forget(self, model_id: str) -> None:
        """The model was deleted: its process ends."""
        with self._lock:
            for process in [*self._processes.values(), *self._leaving]:
                if model_id in process.models:
                    self._stop(process, "a model that it serves was deleted; ask again")

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

    async def _counted(
        self, model: PublishedModel, do: str, fields: Mapping[str, Any]
    ) -> tuple[ModelProcess, Question]:
        """`_ask`, with what keeps the question from being asked counted. Raises Problem."""
        try:
            return await self._ask(model, do, fields)
        except Problem as problem:
            self.metrics.refused(do, problem)
            raise
        except asyncio.CancelledError:
            self.metrics.left(do)
            raise

    def _states(self) -> Counter[str]:
        """How many processes open their model, answer, and are idle."""
        return Counter(
            "opening" if not each.ready.done() else "answering" if each.open_questions else "idle"
            for each in self.living()
        )

    async def _ask(self, model: PublishedModel, do: str, fields: Mapping[str, Any]) -> tuple[ModelProcess, Question]:
        """The question, sent. Raises Problem."""
        why = ""
        for _ in range(3):  # a process may have been idle for too long just now
            process = await self._ready(model, alone=do == "try")
            if model.id not in process.models:  # it could not put the adapter beside the others
                continue
            try:
                return process, process.ask(model, do, fields)
            except ProcessEnded as gone:
                why = str(gone)
        raise _unavailable(why)

    async def _ready(self, model: PublishedModel, alone: bool) -> ModelProcess:
        """The model's process, open. Raises Problem."""
        process = await asyncio.to_thread(self._started, model, alone)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await asyncio.shield(asyncio.wrap_future(process.ready))
        except TimeoutError:
            raise _unavailable(f"The model '{model.name}' is still being opened; ask again.") from None
        except ProcessEnded as gone:
            raise _unopened(model, str(gone)) from None
        return process

    def _started(self, model: PublishedModel, alone: bool) -> ModelProcess:
        """The model's process, perhaps still being started; its page has one `alone`. Raises Problem."""
        key, group = (model.id, []) if alone else self._group(model)
        most = self._most_of(model.project)  # it reads the store: not while others wait for the lock
        with self._lock:
            failed, why = self._failed.get(model.id, (0.0, ""))
            if why and time.monotonic() - failed < FAILED_SECONDS:
                raise _unopened(model, why)
            process = self._processes.get(key)
            if process is not None and model.id not in process.models:
                if model.id in {each.id for each in process.beside}:  # its adapter could not be opened there
                    key, group = model.id, []
                    process = self._processes.get(key)
                else:  # it was published since
                    self._leaving.append(self._processes.pop(key))
                    process = None
            if process is not None:
                return process
            if self._closed.is_set():
                raise _unavailable("The server stops.")
            if self._settings.serve_models == 0:
                raise Problem(403, "This server serves no models (FINERY_SERVE_MODELS=0).", "not_served")
            self._hold_project(model, most)
            self._make_room(model)
            executor = self._executor or self._begin()
            process = self._processes[key] = ModelProcess(
                self._settings, executor, model, self._ended, self._pipelines, group, key
            )
            self._living.add(process)
        self.metrics.opening(process.ready)
        return process

    def _group(self, model: PublishedModel) -> tuple[str, list[PublishedModel]]:
        """(the key of the model's process, the other models of its project whose adapters stand on the same base)."""
        base = shared_base(Path(model.path))
        if base is None:
            return model.id, []
        others = [each for each in self._siblings(model.project) if each.id != model.id]
        group = [each for each in others if each.project == model.project and shared_base(Path(each.path)) == base]
        return (f"{model.project} {base}", group[:MOST_ADAPTERS]) if group else (model.id, [])

    def _stop(self, process: ModelProcess, why: str) -> None:
        """End a process, with the lock held; the next question starts another."""
        process.stop(why)
        self._forget(process)

    def _forget(self, process: ModelProcess) -> None:
        """Give its place away, with the lock held."""
        if self._processes.get(process.key) is process:
            del self._processes[process.key]
        if process in self._leaving:
            self._leaving.remove(process)

    def _hold_project(self, model: PublishedModel, most: int | None) -> None:
        """Keep the project that owns the model within its limit: those of its processes that were idle for longest end.
        Raises Problem."""
        mine = [each for each in (*self._leaving, *self._processes.values()) if each.model.project == model.project]
        if most is None or len(mine) < most:
            return
        idle = [each for each in mine if each.ready.done() and not each.open_questions]
        surplus = len(mine) - most + 1  # more than one where the limit was lowered
        if most == 0 or len(idle) < surplus:
            raise Problem(
                429,
                f"Project '{model.project}' may have {most} processes at once (max_running), for models that are asked "
                "as for jobs; wait until one is idle, or ask an admin for more.",
                "quota_exceeded",
                headers={"Retry-After": "5"},
            )
        for each in sorted(idle, key=lambda each: each.used)[:surplus]:
            self._stop(each, f"'{model.name}' takes its place; ask again")

    def _make_room(self, model: PublishedModel) -> None:
        """End the process that was idle for longest, where there are as many as there may be. Raises Problem."""
        if len(self._processes) + len(self._leaving) < self._settings.serve_models:
            return
        every = [*self._leaving, *self._processes.values()]
        idle = [each for each in every if each.ready.done() and not each.open_questions]
        if not idle:
            raise _unavailable(
                f"{len(every)} models are being asked, as many as this server serves at once "
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
        warm = min(1, settings.warm) if isolation.kept else 0  # others share no environment: `bare_environment`
        self._executor = LocalExecutor(host, tethered=True, isolation=isolation, warm=warm)
        threading.Thread(target=self._look, name="idle models", daemon=True).start()
        return self._executor

    def _look(self) -> None:
        while not self._closed.wait(min(LOOK_SECONDS, self._settings.serve_idle / 4)):
            with self._lock:
                long = time.monotonic() - self._settings.serve_idle
                for each in [each for each in self._leaving if each.ready.done() and not each.open_questions]:
                    self._stop(each, "another process took its place; ask again")
                for each in list(self._processes.values()):
                    if each.ready.done() and not each.open_questions and each.used < long:
                        self._stop(each, "nobody asked it; ask again")

    def _ended(self, process: ModelProcess) -> None:
        failed = process.ready.exception()
        with self._lock:
            self._living.discard(process)
            self._forget(process)
            if failed is not None and not self._closed.is_set():
                now = time.monotonic()
                self._failed = {key: each for key, each in self._failed.items() if now - each[0] < FAILED_SECONDS}
                self._failed[process.model.id] = (now, str(failed))


def _unopened(model: PublishedModel, why: str) -> Problem:
    return Problem(503, f"The model '{model.name}' cannot be opened: {why}", "model_not_served")


def _unavailable(why: str) -> Problem:
    return Problem(503, f"{why[:1].upper()}{why[1:]}", "model_not_ready", headers={"Retry-After": "5"})
