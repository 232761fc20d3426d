"""Two jobs and more beside each other, and studies: scores, costs, curves, and what differs in their recipes.

A study is a job whose recipe has a matrix; its page shows how the cells stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from pipelines.core.scores import COUNTS, smaller_is_better
from service.api.context import Service, apart
from service.api.watching import cells, diff
from service.jobs.job import Job
from service.store.errors import NotFound
from service.web.access import Seen, new_router, service_of
from service.web.job_view import TRAINING, as_json, is_study, series_of, without_secrets
from service.web.rendering import HEADERS, page
from service.web.sessions import Visitor

router = new_router()
MOST_JOBS = 8
Ids = Annotated[list[str] | None, Query(max_length=MOST_JOBS * 4)]


def _jobs(service: Service, visitor: Visitor, ids: list[str] | None) -> tuple[list[Job], list[str]]:
    """The jobs that were named and are there, each once, at most eight; and the ids that are not."""
    jobs, missing = [], []
    for identifier in dict.fromkeys(each.strip() for each in ids or [] if each.strip()):
        try:
            jobs.append(without_secrets(service, service.store.job(identifier, visitor.project)))
        except NotFound:
            missing.append(identifier)
    return jobs[:MOST_JOBS], missing


@apart("readings", router.get("/compare"))
def compare(request: Request, visitor: Seen, job: Ids = None) -> Response:
    """Jobs side by side."""
    service = service_of(request)
    jobs, missing = _jobs(service, visitor, job)
    others = [
        each
        for each in service.store.jobs(visitor.project, limit=50)
        if each.id not in {compared.id for compared in jobs}
    ]
    return page(
        request,
        "compare.html.jinja",
        visitor,
        jobs=jobs,
        missing=missing,
        others=others,
        most=MOST_JOBS,
        scores=_scores(service, jobs),
        costs=_costs(service, visitor, jobs),
        changes=_changes(service, visitor, jobs),
    )


@apart("readings", router.get("/compare/curves"))
def compared_curves(request: Request, visitor: Seen, job: Ids = None) -> Response:
    """The curves of these jobs."""
    service = service_of(request)
    jobs, _ = _jobs(service, visitor, job)
    documents = [
        {"job": each.id, "name": each.name, "stages": as_json(series_of(service, visitor, each))} for each in jobs
    ]
    return JSONResponse({"jobs": documents}, headers=HEADERS)


def _scores(service: Service, jobs: list[Job]) -> list[dict[str, Any]]:
    """One line for each benchmark and metric that any of them has; the best value is marked where two have one."""
    by_job = service.store.scores_of([job.id for job in jobs]) if jobs else {}
    keys = dict.fromkeys(
        (benchmark, metric)
        for job in jobs
        for benchmark, metrics in by_job.get(job.id, {}).items()
        for metric in metrics
    )
    lines = []
    for benchmark, metric in sorted(keys):
        values = [by_job.get(job.id, {}).get(benchmark, {}).get(metric) for job in jobs]
        lines.append({"benchmark": benchmark, "metric": metric, "values": values, "best": _best(metric, values)})
    return lines


def _best(metric: str, values: list[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    if metric in COUNTS or len(there) < 2 or len(set(there)) == 1:
        return None
    return min(there) if smaller_is_better(metric) else max(there)


def _costs(service: Service, visitor: Visitor, jobs: list[Job]) -> list[dict[str, Any]]:
    """One line for each training stage and what it took."""
    costs: dict[tuple[str, str], dict[str, Any]] = {}
    for job in jobs:
        for result in service.store.stage_results(job.id, visitor.project):
            metrics: Mapping[str, Any] = result.metrics
            for key in TRAINING:
                if isinstance(metrics.get(key), int | float):
                    costs.setdefault((result.stage, key), {})[job.id] = metrics[key]
    return [
        {"stage": stage, "metric": key, "values": [values.get(job.id) for job in jobs]}
        for (stage, key), values in sorted(costs.items(), key=lambda pair: (pair[0][0], TRAINING.index(pair[0][1])))
    ]


def _changes(service: Service, visitor: Visitor, jobs: list[Job]) -> list[dict[str, Any]]:
    """The keys in which the recipes differ, against the first job's."""
    if len(jobs) < 2:
        return []
    by_key: dict[str, dict[int, Any]] = {}
    first: dict[str, Any] = {}
    for place, job in enumerate(jobs[1:], start=1):
        for change in diff(jobs[0].id, job.id, service, visitor.caller).changes:
            by_key.setdefault(change.key, {})[place] = change.after
            first[change.key] = change.before
    return [
        {"key": key, "values": [first[key], *(after.get(place, first[key]) for place in range(1, len(jobs)))]}
        for key, after in by_key.items()
    ]


PAGE_SIZE = 25
LOOKED_AT = 2_000
"""Jobs that one page looks through for studies."""


@apart("readings", router.get("/studies"))
def studies(request: Request, visitor: Seen, after: Annotated[str, Query(max_length=64)] = "") -> Response:
    """All studies, newest first."""
    service = service_of(request)
    studies: list[Job] = []
    looked = 0
    more = True
    while more and len(studies) <= PAGE_SIZE and looked < LOOKED_AT:
        jobs = service.store.jobs(visitor.project, after=after or None, limit=250)
        more, looked = len(jobs) == 250, looked + len(jobs)
        studies += (job for job in jobs if is_study(job))
        after = jobs[-1].id if jobs else after
    shown = studies[:PAGE_SIZE]
    rows: list[dict[str, Any]] = []
    for job in shown:
        documents = cells(job.id, service, visitor.caller)
        rows.append(
            {
                "job": job,
                "cells": documents,
                "counts": Counter(each.status for each in documents),
                "axes": list(documents[0].labels) if documents else [],
            }
        )
    next_after = shown[-1].id if len(studies) > PAGE_SIZE else after if more else ""
    return page(request, "studies.html.jinja", visitor, rows=rows, next_after=next_after)
