"""The list of jobs, whose rows follow the jobs while the page is open, and the hosts that run them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query, Request
from sse_starlette import ServerSentEvent
from starlette.responses import Response

from service.jobs.job import Job
from service.jobs.states import ACTIVE, State
from service.store.changes import JOBS
from service.store.errors import NotFound
from service.store.store import Store
from service.web.access import Administering, Seen, new_router, service_of
from service.web.rendering import page, partial
from service.web.sessions import Visitor
from service.web.streams import SIGNED_OUT, PageParts, looks, message, respond

router = new_router()
PAGE_SIZE = 50
MOST_IDLE = 5.0
"""Seconds after which an open page is looked at although nothing changed: whether its visitor may still see it,
above all."""
GROUPS: dict[str, tuple[State, ...]] = {
    "running": tuple(sorted(ACTIVE)),
    "waiting": (State.QUEUED, State.PAUSED),
    "succeeded": (State.SUCCEEDED,),
    "failed": (State.FAILED,),
    "cancelled": (State.CANCELLED,),
}
"""Words of the filter -> the states they stand for."""


@dataclass(frozen=True)
class Filters:
    """What a list shows."""

    show: str = ""
    """A word of GROUPS; empty for all."""
    search: str = ""
    after: str = ""
    """The last job of the page before."""

    @property
    def parameters(self) -> dict[str, Any]:
        return {"show": self.show, "search": self.search, "after": self.after}


def filters_of(
    show: Annotated[str, Query(max_length=20)] = "",
    search: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[str, Query(max_length=64)] = "",
) -> Filters:
    return Filters(show if show in GROUPS else "", search.replace("\x00", "").strip(), after)


def _found(store: Store, visitor: Visitor, filters: Filters) -> tuple[list[Job], bool]:
    """The jobs of this page, and whether there are older ones."""
    states = GROUPS.get(filters.show)
    jobs = store.jobs(
        visitor.project, states=states, search=filters.search or None, after=filters.after or None, limit=PAGE_SIZE + 1
    )
    return jobs[:PAGE_SIZE], len(jobs) > PAGE_SIZE


def _counts(store: Store, visitor: Visitor) -> dict[str, int]:
    count = store.count(visitor.project)
    return {"": sum(count.values())} | {word: sum(count[state] for state in states) for word, states in GROUPS.items()}


@router.get("/jobs")
def jobs_page(
    request: Request,
    visitor: Seen,
    show: Annotated[str, Query(max_length=20)] = "",
    search: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """All jobs of the project, newest first."""
    store = service_of(request).store
    filters = filters_of(show, search, after)
    jobs, more = _found(store, visitor, filters)
    return page(
        request,
        "jobs.html.jinja",
        visitor,
        jobs=jobs,
        more=more,
        filters=filters,
        counts=_counts(store, visitor),
        groups=GROUPS,
    )


@router.get("/jobs/stream")
async def jobs_stream(
    request: Request,
    visitor: Seen,
    show: Annotated[str, Query(max_length=20)] = "",
    search: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[str, Query(max_length=64)] = "",
    newest: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Rows of the page that changed, the counts, and how many jobs are newer than `newest`."""
    return respond(_messages(request, visitor, filters_of(show, search, after), newest))


async def _messages(
    request: Request, visitor: Visitor, filters: Filters, newest: str
) -> AsyncIterator[ServerSentEvent]:
    store = service_of(request).store
    parts = PageParts()
    shown: set[str] | None = None

    def look() -> tuple[list[Job], list[Job], dict[str, int]]:
        """The jobs that the filter finds, those that the page shows, and how many there are."""
        nonlocal shown
        jobs = _found(store, visitor, filters)[0]
        shown = {job.id for job in jobs if not newest or job.id <= newest} if shown is None else shown
        rest = _still_there(store, visitor, sorted(shown - {job.id for job in jobs}))
        return jobs, [job for job in [*jobs, *rest] if job.id in shown], _counts(store, visitor)

    async for seen in looks(request, store.changes, JOBS, MOST_IDLE, look):
        if seen is None:
            yield message(SIGNED_OUT, {})
            return
        jobs, there, counts = seen
        rows = {f"row-{job.id}": partial("parts/job_row.html.jinja", job=job, visitor=visitor) for job in there}
        fresh = parts.fresh(
            {**rows, "counts": partial("parts/job_counts.html.jinja", counts=counts, groups=GROUPS, filters=filters)}
        )
        if fresh:
            yield message("parts", fresh)
        news = 0 if filters.after else sum(job.id > newest for job in jobs)
        if news and parts.fresh({"news": str(news)}):
            yield message("news", {"count": news, "more": news >= PAGE_SIZE})


def _still_there(store: Store, visitor: Visitor, missing: Sequence[str]) -> list[Job]:
    """Jobs that left the filter while the page shows them: they stay in place and tell their new state."""
    jobs = []
    for identifier in missing[:PAGE_SIZE]:
        with suppress(NotFound):  # deleted
            jobs.append(store.job(identifier, visitor.project))
    return jobs


SILENT = 90.0
"""Seconds after which a host that says nothing is shown as silent."""


@router.get("/hosts")
def hosts(request: Request, visitor: Administering) -> Response:
    """All hosts; for admins, because hosts are shared by all projects."""
    store = service_of(request).store
    live = {attempt.id: (attempt, job) for attempt, job in store.live_attempts()}
    holders = store.slot_holders()
    rows: list[dict[str, Any]] = []
    for host in store.hosts():
        here = [
            (attempt, job)
            for attempt, job in live.values()
            if any(part.host == host.name for part in attempt.placement)
        ]
        slots = []
        for slot in host.slots:
            _, job = live.get(holders.get((host.name, slot.index), ""), (None, None))
            slots.append({"slot": slot, "taken": (host.name, slot.index) in holders, "job": job})
        rows.append(
            {
                "host": host,
                "slots": slots,
                "jobs": [job for _, job in here],
                "cpus": sum(attempt.resources.cpus for attempt, _ in here),
                "silent": host.state != "down" and time.time() - host.seen > SILENT,
            }
        )
    return page(request, "hosts.html.jinja", visitor, rows=rows)
