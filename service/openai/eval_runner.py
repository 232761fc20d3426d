"""Runs of evals at work: a model is asked about each row, the criteria grade its answers, and the store keeps both.

One thread with an event loop does it for all projects. A run is held by a lease, so that of several servers on one
database one works on it, and a server that starts again goes on with what its runs still lack. Models are asked as
requests ask them: by the processes of `service.serving`, in their isolation and under their limits. While a model has
no room the run waits; where it cannot be opened, or is gone, or where the project keeps as much as it may, the run
fails with the reason. What is wrong with one row is an error of that row alone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pipelines.core.errors import FineryError
from pipelines.core.grader_templates import Unfilled
from pipelines.core.graders import Grade, GraderQuestion, Usage, sample_of
from service.api.context import Caller, Service
from service.api.problems import Problem
from service.jobs.job import Lease
from service.openai.eval_requests import (
    SEED,
    TOKENS,
    Criterion,
    asked_messages,
    criterion_of,
    given_sample,
    schema_of,
)
from service.openai.grading import RETRIED, chatted, graded
from service.serving.asking import servable
from service.store.errors import Conflict, NotFound
from service.store.evals import (
    COMPLETED,
    ERRORED,
    FAILED,
    FAILED_ITEM,
    PASSED,
    WAITING,
    Eval,
    EvalItem,
    EvalRun,
)

AT_ONCE = 2
"""Runs that are worked on at the same time."""
ROWS_AT_ONCE = 4
"""Rows of a run whose answers are written together."""
PAGE = 64
LOOK_SECONDS = 0.5
LEASE_SECONDS = 30.0
RETRY_SECONDS, PATIENCE_SECONDS = 2.0, 900.0
"""How often a model without room is asked again, and for how long."""
log = logging.getLogger(__name__)


class RunFailed(Exception):
    """A run cannot go on."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class RunOver(Exception):
    """A run was cancelled or deleted, or went to another server."""


class EvalRunner:
    """The thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._store = service.store
        self.holder = f"evals {socket.gethostname()}:{service.settings.home}"
        """The same after a restart, so that a new process goes on at once."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()), name="evals", daemon=True)

    def start(self) -> None:
        """Begin, with the runs that an earlier server left."""
        self._thread.start()

    def stop(self) -> None:
        """Leave everything as it is; the next start goes on."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def stopped(self) -> list[str]:
        """Its name where it is no longer at work."""
        return [] if self._thread.is_alive() else ["evals"]

    async def _work(self) -> None:
        tasks: dict[str, asyncio.Task[None]] = {}
        projects: dict[str, str] = {}
        while not self._stop.is_set():
            try:
                tasks = {name: task for name, task in tasks.items() if not task.done()}
                if len(tasks) < AT_ONCE:
                    waiting = [run for run in await asyncio.to_thread(self._store.open_runs) if run.id not in tasks]
                    busy = Counter(projects[name] for name in tasks)
                    for run in sorted(waiting, key=lambda each: (busy[each.project], each.id))[: AT_ONCE - len(tasks)]:
                        projects[run.id] = run.project
                        tasks[run.id] = asyncio.create_task(self._take(run))
            except Exception:
                log.exception("runs of evals are not looked for; trying again")
            await asyncio.sleep(LOOK_SECONDS)
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _take(self, run: EvalRun) -> None:
        """Work on a run, unless another server does."""
        try:
            lease = await asyncio.to_thread(self._store.acquire, f"eval:{run.id}", self.holder, LEASE_SECONDS)
            if lease is None:
                return
            work = asyncio.create_task(self._whole(run))
            keep = asyncio.create_task(self._keep(lease))
            try:
                await asyncio.wait({work, keep}, return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    work.result()
            finally:
                for task in (work, keep):
                    task.cancel()
                    with suppress(asyncio.CancelledError, Exception):
                        await task
                if not self._stop.is_set():
                    await asyncio.to_thread(self._store.release, lease)
        except asyncio.CancelledError:
            raise
        except RunOver:
            log.info("run %s is over", run.id)
        except FineryError as error:  # the database is away, say: the run stays open and is taken up again
            log.warning("run %s is interrupted: %s", run.id, error)
        except Exception:
            log.exception("run %s failed", run.id)
            message = "The error was logged; run it again, and tell an admin if it stays."
            await asyncio.to_thread(self._store.end_run, run.id, FAILED, {"code": "internal", "message": message})

    async def _keep(self, lease: Lease) -> None:
        """Keep the lease; returns when another server has it."""
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            try:
                lease = await asyncio.to_thread(self._store.renew_lease, lease, LEASE_SECONDS)
            except Conflict:
                return

    async def _whole(self, run: EvalRun) -> None:
        """All rows that are still waiting, then the end."""
        if not await asyncio.to_thread(self._store.begin_run, run.id):
            return
        try:
            of = await asyncio.to_thread(self._store.eval, run.eval, None)
            measured = Measured(self._service, of, run)
            while rows := await asyncio.to_thread(self._store.eval_items, run.id, limit=PAGE, states=(WAITING,)):
                usage = await asyncio.to_thread(self._store.disk_usage, run.project)
                if usage.full:
                    raise RunFailed("disk_quota", f"{usage.sentence}. What the run has measured is kept.")
                await _together([measured.row(each) for each in rows])
        except NotFound:
            raise RunOver from None
        except RunFailed as failed:
            error = {"code": failed.code, "message": str(failed)}
            await asyncio.to_thread(self._store.end_run, run.id, FAILED, error)
            return
        await asyncio.to_thread(self._store.end_run, run.id, COMPLETED)


async def _together(work: list[Any]) -> None:
    """Some coroutines at a time; the first that raises ends the others."""
    gate = asyncio.Semaphore(ROWS_AT_ONCE)

    async def one(each: Any) -> None:
        async with gate:
            await each

    tasks = [asyncio.ensure_future(one(each)) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in work:
            each.close()


class Measured:
    """One run, with what it asks and how it grades."""

    def __init__(self, service: Service, of: Eval, run: EvalRun) -> None:
        self._service, self._run = service, run
        self._criteria = [criterion_of(each, f"testing_criteria[{at}]") for at, each in enumerate(of.testing_criteria)]
        self._caller = Caller(run.id, run.project, run.role, run.project)

    async def row(self, row: EvalItem) -> None:
        """Ask, grade, keep. Raises RunFailed, RunOver."""
        usage: dict[str, Usage] = {}
        sample, fault = await self._answer(row, usage)
        results: list[dict[str, Any]] = []
        state = ERRORED
        if not fault:
            namespace = (
                given_sample(row.given) if row.given else sample_of(str(sample["output"][0]["content"]), **sample)
            )
            grades = [await self._grade(each, row, namespace, usage) for each in self._criteria]
            results = [result_of(each, grade) for each, grade in zip(self._criteria, grades, strict=True)]
            broken = any(set(grade.faults) - {"sample_parse_error"} for grade in grades)
            state = ERRORED if broken else PASSED if all(each["passed"] for each in results) else FAILED_ITEM
        counts = {model: vars(each) for model, each in usage.items()}
        kept = await asyncio.to_thread(self._store.finish_item, row.run, row.number, state, sample, results, counts)
        if not kept:
            raise RunOver

    @property
    def _store(self) -> Any:
        return self._service.store

    async def _answer(self, row: EvalItem, usage: dict[str, Usage]) -> tuple[dict[str, Any], str]:
        """(the sample that is kept, why there is no answer): of the model, or the one that the row brings."""
        source = self._run.data_source
        if source["type"] == "jsonl":
            text = given_sample(row.given)["output_text"] if row.given else ""
            return sample_document(text, [], "", "", source, {}), ""
        model = self._run.model
        try:
            messages = asked_messages(source, row.item)
        except (Unfilled, ValueError) as error:
            return sample_document("", [], model, f"The messages cannot be made: {error}.", source, {}), str(error)
        sampling = source.get("sampling_params") or {}
        question = GraderQuestion(
            model,
            tuple(messages),
            max_tokens=int(sampling.get("max_completions_tokens") or sampling.get("max_completion_tokens") or TOKENS),
            temperature=float(sampling.get("temperature", 1.0)),
            top_p=float(sampling.get("top_p", 1.0)),
            seed=int(sampling.get("seed", SEED)),
            json_schema=schema_of(sampling),
        )
        try:
            whole = await self._patiently(lambda: self._chat(question))
        except Problem as problem:
            return sample_document("", messages, model, problem.detail, source, {}), problem.detail
        counts = {key: whole.usage.get(key, 0) for key in ("prompt_tokens", "completion_tokens")}
        usage.setdefault(model, Usage()).add(Usage(1, **counts))
        sample = sample_document(whole.texts[0], messages, model, "", source, counts)
        return {**sample, "finish_reason": whole.reasons[0]}, ""

    async def _chat(self, question: GraderQuestion) -> Any:
        try:
            model = await asyncio.to_thread(servable, self._service, self._caller, str(question.model), "chat")
        except NotFound:
            raise RunFailed("model_not_found", f"The model '{question.model}' is gone.") from None
        return await chatted(self._service, self._caller, model, question)

    async def _grade(
        self, criterion: Criterion, row: EvalItem, sample: Mapping[str, Any], usage: dict[str, Usage]
    ) -> Grade:
        grade: Grade = await self._patiently(
            lambda: graded(self._service, self._caller, criterion.grader, row.item, sample)
        )
        for model, each in grade.usage.items():
            usage.setdefault(model, Usage()).add(each)
        return grade

    async def _patiently(self, ask: Any) -> Any:
        """What is asked, asked again while there is no room. Raises Problem for what no patience helps, RunFailed where
        it ends."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return await ask()
            except Problem as problem:
                if problem.status not in (RETRIED, 429):
                    raise
                if problem.code in ("model_not_served", "not_served") or time.monotonic() > limit:
                    raise RunFailed(problem.code, problem.detail) from None
            await asyncio.sleep(RETRY_SECONDS)


def result_of(criterion: Criterion, grade: Grade) -> dict[str, Any]:
    """What one criterion made of a row."""
    sample = {"sample": {"output": [{"role": "assistant", "content": grade.said}]}} if grade.said else {}
    parts = {"parts": {name: part.score for name, part in grade.parts.items()}} if grade.parts else {}
    faults = {"faults": {str(key): value for key, value in grade.faults.items()}} if grade.faults else {}
    return {
        "name": criterion.grader.name,
        "type": criterion.grader.type,
        "score": grade.score,
        "passed": criterion.passed(grade),
        **sample,
        **parts,
        **faults,
    }


def sample_document(
    text: str,
    messages: list[dict[str, str]],
    model: str,
    error: str,
    source: Mapping[str, Any],
    usage: Mapping[str, int],
) -> dict[str, Any]:
    """A sample as OpenAI shows it."""
    sampling = source.get("sampling_params") or {}
    prompt, written = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return {
        "input": messages,
        "output": [{"role": "assistant", "content": text}],
        "finish_reason": "error" if error else "stop",
        "model": model,
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "cached_tokens": 0,
        },
        "error": {"code": "sample_error", "message": error} if error else {"code": "", "message": ""},
        "seed": sampling.get("seed", SEED),
        "temperature": sampling.get("temperature", 1.0),
        "top_p": sampling.get("top_p", 1.0),
        "max_completion_tokens": sampling.get("max_completion_tokens", TOKENS),
    }
