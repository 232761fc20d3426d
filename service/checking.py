"""Checking recipes in processes of their own, so that one that takes too long or too much memory costs an answer only.

A `Checker` keeps a few worker processes warm. They import no torch, hold none of the server's variables but those
that attempts inherit, and get each recipe as one line of JSON. A worker that has not answered in time, dies, or runs
out of memory is replaced, and the recipe is refused. What is plainly too large is refused before any worker sees it
(`network_recipes.too_costly`).

`Lane` is how requests come to such work: at most so many at once, all but one of them for the same caller, the rest
waits in a bounded queue without holding a thread.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio.to_thread import run_sync

from pipelines.core.errors import CommandError, FineryError, Mistake, RecipeError
from service.attempts.environment import INHERITED, SECRET_NAMES
from service.safety.network_recipes import FILE, Known, Needs, too_costly
from service.settings import Settings

Result = TypeVar("Result")
ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 60.0
"""How long a worker may import."""
LARGEST_ANSWER = 16 << 20
MOST_MISTAKES = 500
"""Of one recipe that are told."""
KEPT = 256
"""Recipes whose outcome is remembered: the same one is often submitted again, and checking it takes longer than
all the rest."""
log = logging.getLogger(__name__)


class Crowded(FineryError):
    """Too many requests of this kind wait already."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
        """503 where all callers together are too many, 429 where one is."""


class Lane:
    """Work that takes a thread for long: `threads` at once, of one caller at most all but one; others wait,
    `waiting` at most."""

    def __init__(self, name: str, threads: int, waiting: int = 256, each: int = 64) -> None:
        self.name = name
        self.threads = threads
        self.waiting = waiting
        self.each = each
        self._limiter = anyio.CapacityLimiter(threads)
        self._callers: dict[str, anyio.CapacityLimiter] = {}
        self._count: Counter[str] = Counter()

    async def run(self, caller: str, work: Callable[..., Result], /, *given: Any, **named: Any) -> Result:
        """The result of `work`. Raises Crowded before it has begun."""
        if self._count.total() >= self.threads + self.waiting:
            raise Crowded(f"Too many requests wait for {self.name}; try again in a few seconds.", 503)
        if self._count[caller] >= self.each:
            raise Crowded(
                f"This token has {self.each} requests that wait for {self.name}; wait for their answers first.", 429
            )
        own = self._callers.setdefault(caller, anyio.CapacityLimiter(max(1, self.threads - 1)))
        self._count[caller] += 1
        place = object()
        try:
            await own.acquire_on_behalf_of(place)
            try:
                return await run_sync(partial(work, *given, **named), limiter=self._limiter)
            finally:
                own.release_on_behalf_of(place)
        finally:
            self._count[caller] -= 1
            if not self._count[caller]:
                del self._count[caller], self._callers[caller]


@dataclass(frozen=True)
class RecipeReading:
    """A recipe that can be read, not checked yet."""

    text: str
    data: Mapping[str, Any]
    """Plain data, overrides applied."""
    needs: Needs


@dataclass(frozen=True)
class Outline:
    """What there is to say of a recipe that may run."""

    name: str
    stages: tuple[str, ...]
    """Their ids."""
    cells: int
    """Of a study; 1 otherwise."""


class Checker:
    """A fixed number of worker processes. Safe from any thread."""

    def __init__(self, workers: int = 2, seconds: float = 10.0, memory: int = 512 << 20) -> None:
        self.seconds = seconds
        self.memory = memory
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._idle.put(None)
        self._workers = workers
        self._closed = False
        self._read = lru_cache(KEPT)(self._read_now)
        self._check = lru_cache(KEPT)(self._check_now)

    def start(self) -> None:
        """Begin the workers, which import in the background."""
        empty = [self._idle.get() for _ in range(self._workers)]
        for each in empty:
            self._idle.put(each or _Worker(self.seconds, self.memory))

    def close(self) -> None:
        """End the workers that are idle; those that work end with their work."""
        self._closed = True
        while True:
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                return
            if worker is not None:
                worker.end()

    def read(self, recipe: str | Mapping[str, object], overrides: Sequence[str] = ()) -> RecipeReading:
        """The recipe as text and data. Raises RecipeError, at once for what is too large."""
        problem = too_costly(recipe, overrides)
        if problem is not None:
            raise RecipeError([Mistake("", problem, FILE)])
        written = recipe if isinstance(recipe, str) else json.dumps(recipe)
        reading: RecipeReading = _unless_mistaken(self._read(written, isinstance(recipe, str), tuple(overrides)))
        return reading

    def check(
        self,
        text: str,
        overrides: Sequence[str],
        known: Known,
        processes: int | None,
        secrets: Mapping[str, tuple[str, ...] | None] | None = None,
    ) -> Outline:
        """What the recipe is. `secrets` are the hosts of those that its job names, never their values. Raises
        RecipeError with every mistake."""
        files = tuple((name, str(path)) for name, path in known.files.items())
        checkpoints = tuple((name, None if path is None else str(path)) for name, path in known.checkpoints.items())
        code = tuple(sorted(known.code))
        outline: Outline = _unless_mistaken(
            self._check(
                text,
                tuple(overrides),
                files,
                checkpoints,
                code,
                known.private_endpoints,
                tuple(sorted(known.missing_trackers)),
                processes,
                tuple((secrets or {}).items()),
            )
        )
        return outline

    def draft(self, fields: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
        """The recipe that a filled-in form stands for, as text and as data. Raises RecipeError."""
        size = sum(len(key) + len(value) for key, value in fields.items())
        problem = too_costly("x" * size) or next(
            (reason for each in fields.values() if (reason := too_costly(each)) is not None), None
        )
        if problem is not None:
            raise RecipeError([Mistake("", problem, FILE)])
        answer = _unless_mistaken(self._asked("draft", fields=dict(fields)))
        return answer["text"], _tuples(answer["data"])

    def _read_now(self, recipe: str, is_text: bool, overrides: tuple[str, ...]) -> RecipeReading | FineryError:
        answer = self._asked("read", recipe=recipe, is_text=is_text, overrides=overrides)
        if isinstance(answer, FineryError):
            return answer
        needs: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in answer["needs"].items()
        }
        return RecipeReading(answer["text"], _tuples(answer["data"]), Needs(**needs))

    def _check_now(
        self,
        text: str,
        overrides: tuple[str, ...],
        files: object,
        checkpoints: object,
        code: object,
        private: bool,
        missing_trackers: object,
        most: int | None,
        secrets: object,
    ) -> Outline | FineryError:
        answer = self._asked(
            "check",
            text=text,
            overrides=overrides,
            files=files,
            checkpoints=checkpoints,
            code=code,
            private=private,
            missing_trackers=missing_trackers,
            processes=most,
            secrets=secrets,
        )
        return (
            answer
            if isinstance(answer, FineryError)
            else Outline(answer["name"], tuple(answer["stages"]), answer["cells"])
        )

    def _asked(self, work: str, **given: Any) -> Any:
        """What a worker answers. Errors of the recipe are returned, so that they are remembered; one that took too
        long is tried again."""
        worker = self._idle.get()
        returned: _Worker | None = None
        try:
            worker = worker if worker is not None and worker.alive else _Worker(self.seconds, self.memory)
            answer = worker.ask({"work": work, **given})
            returned = worker if answer is not None and not answer.get("spent") else None
        finally:
            if returned is None and worker is not None:
                worker.end()
                returned = None if self._closed else _Worker(self.seconds, self.memory)
            self._idle.put(returned)
            if self._closed:
                self.close()
        if answer is None or answer.get("spent"):
            log.warning(
                "a recipe was refused: checking it took more than %.0f s or %d MB", self.seconds, self.memory >> 20
            )
            raise RecipeError(
                [
                    Mistake(
                        "",
                        f"takes too long to check (more than {self.seconds:g} s or {self.memory >> 20} MB of "
                        "memory); make it smaller",
                        FILE,
                    )
                ]
            )
        if "mistakes" in answer:
            return RecipeError([Mistake(*each) for each in answer["mistakes"]])
        if "refused" in answer:
            return CommandError(answer["refused"])
        if "failed" in answer:
            raise RuntimeError(f"the check failed: {answer['failed']}")
        return answer["result"]


def checker_of(settings: Settings) -> Checker:
    """The checker that the settings ask for."""
    return Checker(settings.check_workers, settings.check_seconds, settings.check_memory)


def _unless_mistaken(result: object) -> Any:
    if isinstance(result, RecipeError):
        raise RecipeError(result.mistakes)  # a new one each time: a raised error carries its trace
    if isinstance(result, FineryError):
        raise type(result)(str(result))
    return result


def _tuples(value: object) -> Any:
    """Plain data as `pipelines` has it, whose sequences are tuples."""
    if isinstance(value, dict):
        return {key: _tuples(entry) for key, entry in value.items()}
    return tuple(_tuples(entry) for entry in value) if isinstance(value, list) else value


class _Worker:
    """One process."""

    def __init__(self, seconds: float, memory: int) -> None:
        self._seconds = seconds
        code = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); from service.checking import work; work({seconds!r}, "
            f"{memory!r})"
        )
        environment = {
            name: value
            for name, value in os.environ.items()
            if INHERITED.fullmatch(name) and not SECRET_NAMES.search(name)
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self._ready = False
        self._begun = time.monotonic()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, request: Mapping[str, object]) -> dict[str, Any] | None:
        """The answer, or None when it did not come in time or the process is gone."""
        if not self._ready and self._line(self._begun + START_SECONDS) is None:
            raise RuntimeError("a process that checks recipes could not be started")
        self._ready = True
        assert self._process.stdin is not None
        limit = time.monotonic() + self._seconds
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None
        line = self._line(limit)
        return None if line is None else json.loads(line)

    def _line(self, limit: float) -> bytes | None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        poll = select.poll()  # `select` refuses descriptors above 1,023
        poll.register(descriptor, select.POLLIN)
        line = bytearray()
        while len(line) < LARGEST_ANSWER:
            left = limit - time.monotonic()
            if not poll.poll(max(0.0, left) * 1000):  # one look at least: it may have been ready for hours
                if left <= 0:
                    return None
                continue
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                return None
            line += piece
            if piece.endswith(b"\n"):
                return bytes(line)
        return None

    def end(self) -> None:
        """Kill it and take its pipes back."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # it did not read everything
                    pipe.close()
        self._process.wait()


def work(seconds: float, memory: int) -> None:
    """A worker's life: a line of JSON in, a line out, until the service closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does not speak in our place
    with suppress(FineryError):
        _check(_WARM, (), (), (), (), False, (), None, ())
    limit = _mapped() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out.write(b"{}\n")
    out.flush()
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, seconds + 5)  # ends it by itself should the service be gone
        answer = _answer(json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        out.write(answer + b"\n")
        out.flush()
        if b'"spent"' in answer[:10]:
            return


_WARM = (
    "name: warm\nmodel: {architecture: {preset: bert-tiny}}\nstages: [{stage: supervised, task: "
    "builtin/python-docs}, {stage: evaluate}]\n"
)


def _mapped() -> int:
    """Bytes of address space that the process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _answer(request: dict[str, Any]) -> bytes:
    works: dict[str, Callable[..., Any]] = {"read": _read, "check": _check, "draft": _draft}
    try:
        answer: dict[str, Any] = {"result": works[request.pop("work")](**request)}
    except RecipeError as error:
        mistakes = [(each.key, each.message[:4000], each.file, each.line) for each in error.mistakes[:MOST_MISTAKES]]
        answer = {"mistakes": mistakes}
    except CommandError as error:
        answer = {"refused": str(error)}
    except (MemoryError, SystemError):  # the interpreter says the latter where it gets no memory for a frame
        return b'{"spent": true}'
    except RecursionError:
        answer = {"mistakes": [("", "is nested too deeply: not a recipe", FILE, None)]}
    except Exception as error:
        import traceback

        answer = {"failed": f"{type(error).__name__}: {traceback.format_exc(limit=-8)}"}
    try:
        return json.dumps(answer).encode()
    except MemoryError:
        return b'{"spent": true}'


def _read(recipe: str, is_text: bool, overrides: Sequence[str]) -> dict[str, Any]:
    from pipelines.core.yaml_positions import write_yaml
    from service.safety.network_recipes import needs_of, read_network

    text = recipe if is_text else write_yaml(json.loads(recipe))
    data = read_network(text, overrides).data
    needs = needs_of(data)
    return {"text": text, "data": data, "needs": {name: getattr(needs, name) for name in Needs.__dataclass_fields__}}


def _check(
    text: str,
    overrides: Sequence[str],
    files: Any,
    checkpoints: Any,
    code: Any,
    private: bool,
    missing_trackers: Any,
    processes: int | None,
    secrets: Any,
) -> dict[str, Any]:
    from service.safety.network_recipes import check, unfit_keys
    from service.safety.secrets import SecretValue

    known = Known(
        {name: Path(path) for name, path in files},
        {name: None if path is None else Path(path) for name, path in checkpoints},
        frozenset(code),
        private,
        frozenset(missing_trackers),
    )
    checked = check(text, tuple(overrides), known, processes)
    hosts = {name: None if listed is None else tuple(listed) for name, listed in secrets}

    def secret_of(name: str) -> SecretValue | None:
        return SecretValue("", hosts[name]) if name in hosts else None

    mistakes = list(unfit_keys(checked.source.data, tuple(hosts), secret_of))
    for cell in checked.study.cells if checked.study is not None else ():
        mistakes += [(("matrix",), message) for _, message in unfit_keys(cell.draft.data, tuple(hosts), secret_of)]
    if mistakes:
        raise checked.source.error(dict.fromkeys(mistakes))
    return {
        "name": checked.recipe.name,
        "stages": [stage.id for stage in checked.recipe.stages],
        "cells": len(checked.study.cells) if checked.study else 1,
    }


def _draft(fields: Mapping[str, str]) -> dict[str, Any]:
    from pipelines.core.yaml_positions import write_yaml
    from service.web.forms import draft_of

    data = draft_of(fields)
    return {"text": write_yaml(data), "data": data}
