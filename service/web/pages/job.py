"""The page of one job: stages, curves, log, samples, resources, recipe, and the stream that keeps them fresh."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from sse_starlette import ServerSentEvent
from starlette.responses import Response

from service.api.context import Service, apart
from service.api.documents import finite
from service.api.streams import log_folder
from service.executors.console import tail
from service.jobs.job import Job
from service.store.changes import job_topic
from service.store.errors import NotFound
from service.web.consoles import end_of, last_part, readable, since
from service.web.curves import as_json, points_of, series_of, summaries
from service.web.differences import difference
from service.web.job_view import JobView, job_view, without_secrets
from service.web.rendering import HEADERS, page, partial
from service.web.sessions import Visitor
from service.web.streams import SIGNED_OUT, Parts, message, respond, turns
from service.web.visiting import Seen, new_router, service_of

router = new_router()
PARTS = ("head", "stages", "results", "facts", "samples", "warnings", "cells", "happened")
"""Parts of the page that follow the job; each is a template of its own."""
MOST_NEW = 5_000
"""Metric events that one message takes; the next look takes the rest."""
WHOLE_LOG = 16_000_000
"""Bytes of a log that are sent as a text file."""


def parts_of(view: JobView, visitor: Visitor) -> dict[str, str]:
    """The parts as HTML, by the id of their place on the page."""
    return {f"part-{name}": partial(f"parts/job_{name}.html.jinja", view=view, job=view.job, visitor=visitor) for name in PARTS}


@apart("readings", router.get("/jobs/{job_id}"))
def job_page(request: Request, visitor: Seen, job_id: str, against: Annotated[str, Query(max_length=64)] = "") -> Response:
    """One job."""
    service = service_of(request)
    view = job_view(service, visitor, job_id)
    log = last_part(log_folder(service, job_id, view.attempts[-1].id)) if view.attempts else ""
    return page(
        request, "job.html.jinja", visitor, view=view, job=view.job, log=service.redactor.text(log), curves=summaries(series_of(service, visitor, view.job)),
        **_compared(service, visitor, view, against.strip()),
    )  # fmt: skip


def _compared(service: Service, visitor: Visitor, view: JobView, against: str) -> dict[str, Any]:
    """The recipe against another job's, when one was named."""
    others = [job for job in service.store.jobs(visitor.project, limit=30) if job.id != view.job.id]
    found: dict[str, Any] = {"against": against, "others": others, "lines": None, "other": None, "no_other": ""}
    if against:
        try:
            other = without_secrets(service, service.store.job(against, visitor.project))
            found |= {"other": other, "lines": difference(other.request.recipe, view.job.request.recipe)}
        except NotFound as error:
            found["no_other"] = str(error)
    return found


@apart("readings", router.get("/jobs/{job_id}/diff"))
def diff(request: Request, visitor: Seen, job_id: str, against: Annotated[str, Query(max_length=64)] = "") -> Response:
    """The recipe against another job's, as a part of the page."""
    service = service_of(request)
    view = job_view(service, visitor, job_id)
    return page(request, "parts/job_recipe.html.jinja", visitor, view=view, job=view.job, **_compared(service, visitor, view, against.strip()))


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
    found = [each for each in service.store.attempts(job_id, visitor.project) if attempt in (0, each.number)]
    if not found:
        raise NotFound("attempt", str(attempt or "of this job"))
    text = readable(service.redactor.text(tail(log_folder(service, job_id, found[-1].id), WHOLE_LOG)))
    return PlainTextResponse(text, headers=HEADERS)


@router.get("/jobs/{job_id}/stream")
async def stream(request: Request, visitor: Seen, job_id: str) -> Response:
    """What changes on an open page: parts, new points of the curves, new lines of the log."""
    await asyncio.to_thread(service_of(request).store.job, job_id, visitor.project)  # 404 before the stream begins
    return respond(_messages(request, visitor, job_id))


async def _messages(request: Request, visitor: Visitor, job_id: str) -> AsyncIterator[ServerSentEvent]:
    service = service_of(request)
    follower = _Follower(service, visitor, job_id)
    async for may_look in turns(request, service.store.changes, job_topic(job_id), 2.0):
        if not may_look:
            yield message(SIGNED_OUT, {})
            return
        try:
            news = await asyncio.to_thread(follower.look)
        except NotFound:  # deleted
            yield message("over", {})
            return
        for name, data in news:
            yield message(name, data)
        if follower.over:
            yield message("over", {})


class _Follower:
    """What an open page knows of its job already."""

    def __init__(self, service: Service, visitor: Visitor, job_id: str) -> None:
        self.service, self.visitor, self.job_id = service, visitor, job_id
        self.parts = Parts()
        self.after: int | None = None
        self.seen = -1
        self.attempt = ""
        self.read = 0
        self.over = False

    def look(self) -> list[tuple[str, Any]]:
        """The messages for what is new since the last look."""
        found: list[tuple[str, Any]] = []
        job = self.service.store.job(self.job_id, self.visitor.project)
        changed = job.last_event != self.seen or not job.over
        if changed:
            self.seen = job.last_event
            view = job_view(self.service, self.visitor, self.job_id)
            if fresh := self.parts.fresh(parts_of(view, self.visitor)):
                found.append(("parts", fresh))
            found += self._points(job)
        found += self._log(job.attempt)
        self.over = job.over and not changed
        return found

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
