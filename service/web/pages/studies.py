"""The studies: jobs whose recipe has a matrix, and how their cells stand."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from service.api.context import apart
from service.api.routes.watching import cells
from service.jobs.job import Job
from service.web.job_view import is_study
from service.web.rendering import page
from service.web.visiting import Seen, new_router, service_of

router = new_router()
PAGE_SIZE = 25
LOOKED_AT = 2_000
"""Jobs that one page looks through for studies."""


@apart("readings", router.get("/studies"))
def studies(request: Request, visitor: Seen, after: Annotated[str, Query(max_length=64)] = "") -> Response:
    """All studies, newest first."""
    service = service_of(request)
    found: list[Job] = []
    looked = 0
    more = True
    while more and len(found) <= PAGE_SIZE and looked < LOOKED_AT:
        jobs = service.store.jobs(visitor.project, after=after or None, limit=250)
        more, looked = len(jobs) == 250, looked + len(jobs)
        found += (job for job in jobs if is_study(job))
        after = jobs[-1].id if jobs else after
    shown = found[:PAGE_SIZE]
    rows: list[dict[str, Any]] = []
    for job in shown:
        documents = cells(job.id, service, visitor.caller)
        rows.append({"job": job, "cells": documents, "counts": Counter(each.status for each in documents), "axes": list(documents[0].labels) if documents else []})
    next_after = shown[-1].id if len(found) > PAGE_SIZE else after if more else ""
    return page(request, "studies.html.jinja", visitor, rows=rows, next_after=next_after)
