"""The page of one job: stages, curves, log, samples, resources, recipe, its buttons and the stream that keeps it fresh.

What an attempt printed is shown without colours, overwritten lines and control characters. Two recipes are compared
side by side, line by line, with the line numbers of both.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, Any

from fastapi import Form, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse
from sse_starlette import ServerSentEvent
from starlette.responses import Response

from service.api.context import Service, apart
from service.api.documents import finite
from service.api.problems import Problem
from service.api.streams import log_folder
from service.api.watching import comparable
from service.executors.records import read_console, tail
from service.jobs.job import Job
from service.jobs.states import Move
from service.store.changes import job_topic
from service.store.errors import NotFound
from service.web.access import Seen, Submitting, new_router, service_of
from service.web.job_view import BUTTONS, JobView, as_json, job_view, points_of, series_of, summaries, without_secrets
from service.web.rendering import HEADERS, page, partial
from service.web.sessions import Visitor
from service.web.streams import SIGNED_OUT, PageParts, looks, message, respond

SHOWN = 64_000
"""Bytes at the end of a log that a page shows."""
LONGEST_LINE = 4_000
ESCAPE = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def readable(text: str) -> str:
    """What a terminal would show at the end: escapes gone, of each line only what was written after its last return."""
    lines = []
    for line in ESCAPE.sub("", text.replace("\r\n", "\n")).split("\n"):
        last = line.rstrip("\r").rpartition("\r")[2]
        last = CONTROL.sub("\N{REPLACEMENT CHARACTER}", last)
        lines.append(
            last
            if len(last) <= LONGEST_LINE
            else f"{last[:LONGEST_LINE]} … {len(last) - LONGEST_LINE:,} more characters"
        )
    return "\n".join(lines)


def last_part(record: Path) -> str:
    """The end of an attempt's log, whole lines; empty when it has not printed anything."""
    text = tail(record, SHOWN)
    if len(text.encode()) >= SHOWN:
        text = text.partition("\n")[2]
    return readable(text)


def end_of(record: Path) -> int:
    """How many bytes the attempt has printed so far."""
    files = sorted((record / "console").glob("*.log"))
    return int(files[-1].stem) + files[-1].stat().st_size if files else 0


def since(record: Path, after: int) -> tuple[str, int]:
    """What was printed from byte `after` on, up to the last whole line, and where that ends; of much, only the end."""
    end = end_of(record)
    start = max(after, end - SHOWN)
    if end <= after:
        return "", after
    raw = b"".join(read_console(record, start))
    whole = raw.rfind(b"\n") + 1
    if not whole:
        return "", after
    text = raw[:whole].decode(errors="replace")
    if start > after:
        text = f"… {start - after:,} bytes left out …\n{text.partition(chr(10))[2]}"
    return readable(text), start + whole


AROUND = 3
"""Equal lines that are shown before and after a change."""


@dataclass(frozen=True)
class DiffLine:
    """One line of a difference."""

    kind: str
    """`same`, `gone`, `new`, or `gap` for equal lines that are left out."""
    text: str
    left: int | None = None
    """Its number in the first text, from 1."""
    right: int | None = None


def difference(left: str, right: str) -> list[DiffLine]:
    """What turns `left` into `right`; empty when they are equal."""
    before, after = left.splitlines(), right.splitlines()
    if not comparable(before, after):
        gone, new = (enumerate(lines, start=1) for lines in (before, after))
        return (
            [
                *(DiffLine("gone", line, left=at) for at, line in gone),
                *(DiffLine("new", line, right=at) for at, line in new),
            ]
            if before != after
            else []
        )
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    if all(tag == "equal" for tag, *_ in blocks):
        return []
    diff_lines: list[DiffLine] = []
    for place, (tag, start, stop, first, last) in enumerate(blocks):
        if tag == "equal":
            diff_lines += _equal(before, start, stop, first, opens=place == 0, closes=place == len(blocks) - 1)
            continue
        diff_lines += (DiffLine("gone", before[number], left=number + 1) for number in range(start, stop))
        diff_lines += (DiffLine("new", after[number], right=number + 1) for number in range(first, last))
    return diff_lines


def _equal(lines: list[str], start: int, stop: int, first: int, opens: bool, closes: bool) -> Iterator[DiffLine]:
    head = 0 if opens else AROUND
    tail = 0 if closes else AROUND
    left_out = stop - start - head - tail
    for number in range(start, stop):
        at = number - start
        if left_out > 1 and head <= at < head + left_out:
            if at == head:
                yield DiffLine("gap", f"{left_out} equal lines")
            continue
        yield DiffLine("same", lines[number], number + 1, first + at + 1)


router = new_router()
PARTS = ("head", "stages", "results", "facts", "samples", "warnings", "cells", "happened")
"""Parts of the page that follow the job; each is a template of its own."""
MOST_NEW = 5_000
"""Metric events that one message takes; the next look takes the rest."""
WHOLE_LOG = 16_000_000
"""Bytes of a log that are sent as a text file."""


def parts_of(view: JobView, visitor: Visitor) -> dict[str, str]:
    """The parts as HTML, by the id of their place on the page."""
    return {
        f"part-{name}": partial(f"parts/job_{name}.html.jinja", view=view, job=view.job, visitor=visitor)
        for name in PARTS
    }


@apart("readings", router.get("/jobs/{job_id}"))
def job_page(
    request: Request, visitor: Seen, job_id: str, against: Annotated[str, Query(max_length=64)] = ""
) -> Response:
    """One job."""
    service = service_of(request)
    view = job_view(service, visitor, job_id)
    log = last_part(log_folder(service, job_id, view.attempts[-1].id)) if view.attempts else ""
    return page(
        request,
        "job.html.jinja",
        visitor,
        view=view,
        job=view.job,
        log=service.redactor.text(log),
        curves=summaries(series_of(service, visitor, view.job)),
        **_compared(service, visitor, view, against.strip()),
    )


def _compared(service: Service, visitor: Visitor, view: JobView, against: str) -> dict[str, Any]:
    """The recipe against another job's, when one was named."""
    others = [job for job in service.store.jobs(visitor.project, limit=30) if job.id != view.job.id]
    context: dict[str, Any] = {"against": against, "others": others, "lines": None, "other": None, "no_other": ""}
    if against:
        try:
            other = without_secrets(service, service.store.job(against, visitor.project))
            context |= {"other": other, "lines": difference(other.request.recipe, view.job.request.recipe)}
        except NotFound as error:
            context["no_other"] = str(error)
    return context


@apart("readings", router.get("/jobs/{job_id}/diff"))
def diff(request: Request, visitor: Seen, job_id: str, against: Annotated[str, Query(max_length=64)] = "") -> Response:
    """The recipe against another job's, as a part of the page."""
    service = service_of(request)
    view = job_view(service, visitor, job_id)
    return page(
        request,
        "parts/job_recipe.html.jinja",
        visitor,
        view=view,
        job=view.job,
        **_compared(service, visitor, view, against.strip()),
    )


@apart("readings", router.get("/jobs/{job_id}/curves"))
def curves(request: Request, visitor: Seen, job_id: str) -> Response:
    """Every curve as numbers, for the page's charts."""
    service = service_of(request)
    job = service.store.job(job_id, visitor.project)
    return JSONResponse({"stages": as_json(series_of(service, visitor, job))}, headers=HEADERS)


@apart("readings", router.get("/jobs/{job_id}/log"))
def log(request: Request, visitor: Seen, job_id: str, attempt: Annotated[int, Query(ge=0)] = 0) -> Response:
    """The log of an attempt as plain text: its last 16 MB, of the newest attempt when no number is given."""
    service = service_of(request)
    attempts = [each for each in service.store.attempts(job_id, visitor.project) if attempt in (0, each.number)]
    if not attempts:
        raise NotFound("attempt", str(attempt or "of this job"))
    text = readable(service.redactor.text(tail(log_folder(service, job_id, attempts[-1].id), WHOLE_LOG)))
    return PlainTextResponse(text, headers=HEADERS)


@router.get("/jobs/{job_id}/stream")
async def stream(request: Request, visitor: Seen, job_id: str) -> Response:
    """What changes on an open page: parts, new points of the curves, new lines of the log."""
    await asyncio.to_thread(service_of(request).store.job, job_id, visitor.project)  # 404 before the stream begins
    return respond(_messages(request, visitor, job_id))


async def _messages(request: Request, visitor: Visitor, job_id: str) -> AsyncIterator[ServerSentEvent]:
    service = service_of(request)
    follower = _Follower(service, visitor, job_id)
    async for news in looks(request, service.store.changes, job_topic(job_id), 2.0, follower.look):
        if news is None:
            yield message(SIGNED_OUT, {})
            return
        for name, data in news:
            yield message(name, data)
        if follower.over:
            yield message("over", {})
        if follower.deleted:
            return


class _Follower:
    """What an open page knows of its job already."""

    def __init__(self, service: Service, visitor: Visitor, job_id: str) -> None:
        self.service, self.visitor, self.job_id = service, visitor, job_id
        self.parts = PageParts()
        self.after: int | None = None
        self.seen = -1
        self.attempt = ""
        self.read = 0
        self.over = self.deleted = False

    def look(self) -> list[tuple[str, Any]]:
        """The messages for what is new since the last look."""
        try:
            return self._news()
        except NotFound:
            self.over = self.deleted = True
            return []

    def _news(self) -> list[tuple[str, Any]]:
        messages: list[tuple[str, Any]] = []
        job = self.service.store.job(self.job_id, self.visitor.project)
        changed = job.last_event != self.seen or not job.over
        if changed:
            self.seen = job.last_event
            view = job_view(self.service, self.visitor, self.job_id)
            if fresh := self.parts.fresh(parts_of(view, self.visitor)):
                messages.append(("parts", fresh))
            messages += self._points(job)
        messages += self._log(job.attempt)
        self.over = job.over and not changed
        return messages

    def _points(self, job: Job) -> list[tuple[str, Any]]:
        """At first every curve, from then on only what is new."""
        if self.after is None:
            self.after = job.last_event
            return [("curves", {"stages": as_json(series_of(self.service, self.visitor, job))})]
        events = self.service.store.events_after(job.id, self.after, limit=MOST_NEW, kinds=("metric",))
        self.after = events[-1].id if events else self.after
        points = [list(point) for point in points_of(events)]
        return [("points", finite(points))] if points else []

    def _log(self, attempt: str | None) -> list[tuple[str, Any]]:
        if attempt is None:
            return []
        record = log_folder(self.service, self.job_id, attempt)
        if attempt != self.attempt:
            self.attempt, self.read = attempt, end_of(record)
            return [("log", {"text": self.service.redactor.text(last_part(record)), "replace": True})]
        text, self.read = since(record, self.read)
        return [("log", {"text": self.service.redactor.text(text)})] if text else []


LARGEST_PRIORITY = 1_000


@router.post("/jobs/{job_id}/priority")
def priority(
    request: Request, visitor: Submitting, job_id: str, priority: Annotated[str, Form(max_length=20)]
) -> Response:
    """Change a job's priority."""
    service = service_of(request)
    try:
        number = int(priority)
    except ValueError:
        number = LARGEST_PRIORITY + 1
    if abs(number) > LARGEST_PRIORITY:
        raise Problem(
            422,
            f"The priority is '{priority}', must be a whole number from -{LARGEST_PRIORITY} to {LARGEST_PRIORITY}.",
            "invalid_request",
        )
    service.store.set_priority(job_id, number, visitor.project)
    service.wake()
    return _answer(request, visitor, job_id)


@router.post("/jobs/{job_id}/{move}")
def act(request: Request, visitor: Submitting, job_id: str, move: str) -> Response:
    """Pause, resume, cancel or retry a job. What its state does not allow is a 409 in words."""
    if move not in [str(each) for each in BUTTONS]:
        raise Problem(404, f"A job cannot be asked to '{move}'.", "not_found")
    service = service_of(request)
    service.store.move(job_id, Move(move), project=visitor.project)
    service.wake()
    return _answer(request, visitor, job_id)


def _answer(request: Request, visitor: Visitor, job_id: str) -> Response:
    """The new head of the page for HTMX, the page itself for everybody else."""
    if "hx-request" not in request.headers:
        return RedirectResponse(f"/jobs/{job_id}", 303, HEADERS)
    view = job_view(service_of(request), visitor, job_id)
    return page(request, "parts/job_head.html.jinja", visitor, view=view, job=view.job)
