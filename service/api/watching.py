"""What a job does: events, log, metrics, its recipe, differences to another one, and the cells of a study."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field
from starlette.responses import Response

from pipelines.core.config import ConfigIssues, Position, key_path
from pipelines.core.study_matrix import Axis, MatrixValue, axes_of, combinations
from service.api.context import Caller, Service, ServiceOf, Viewer, apart
from service.api.documents import JobDocument, Page, finite, page, plain_event
from service.api.jobs import LIMIT, clean, job_of
from service.api.problems import Problem, described
from service.api.streams import stream_events, stream_log, whole_log
from service.jobs.job import Job

router = APIRouter(tags=["watching"], responses=described(404))
LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        max_length=200,
        description="The id of the last event that arrived; the stream goes on behind it.",
    ),
]
Accept = Annotated[str, Header(include_in_schema=False)]
SSE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "A page, or with Accept: text/event-stream the stream.",
    }
}
MOST_LOG = 8 << 20
MOST_PAIRS = 20_000
"""Pairs of equal lines that two recipes may have to be compared line by line."""
LOOKED_AT = 5_000
"""Jobs that one page looks through for studies."""
LARGEST_ID = 2**62


class Events(BaseModel):
    """A page of events, oldest first."""

    data: list[dict[str, Any]]
    last: int = Field(description="Pass it as `after` for what follows.")


@router.get("/jobs/{job_id}/events", response_model=Events, responses=SSE)
def events(
    request: Request,
    job_id: str,
    service: ServiceOf,
    caller: Viewer,
    after: Annotated[int, Query(ge=0, le=LARGEST_ID)] = 0,
    kind: Annotated[list[str] | None, Query(max_length=50)] = None,
    limit: Annotated[int, Query(ge=1, le=5000)] = 500,
    accept: Accept = "",
    last_event_id: LastEventId = None,
) -> Any:
    """The events of a job, as a page or as a stream of server-sent events that ends with the job."""
    job = job_of(service, caller, job_id)
    if last_event_id is not None:
        if not last_event_id.isascii() or not last_event_id.isdigit() or int(last_event_id) > LARGEST_ID:
            raise Problem(422, "Last-Event-ID must be the id of an event.", "invalid_request")
        after = max(after, int(last_event_id))
    if "text/event-stream" in accept:
        return stream_events(request, service, caller, job, after)
    kinds = None if kind is None else [clean(each) or "" for each in kind]
    rows = service.store.events_after(job.id, after, limit=limit, project=caller.scope, kinds=kinds)
    return Events(data=[plain_event(row, service.redactor) for row in rows], last=rows[-1].id if rows else after)


@apart(
    "readings",
    router.get(
        "/jobs/{job_id}/logs",
        response_model=None,
        responses={
            200: {
                "content": {
                    "text/plain": {"schema": {"type": "string"}},
                    "text/event-stream": {"schema": {"type": "string"}},
                },
                "description": "The console log, or its stream.",
            }
        },
    ),
)
def log(
    request: Request,
    job_id: str,
    service: ServiceOf,
    caller: Viewer,
    accept: Accept = "",
    last_event_id: LastEventId = None,
) -> Response:
    """What the job printed, as text or as a stream that ends with the job."""
    job = job_of(service, caller, job_id)
    if "text/event-stream" not in accept:
        return PlainTextResponse(whole_log(service, caller, job, MOST_LOG))
    attempt, _, offset = (last_event_id or "").rpartition(":")
    if last_event_id is not None and not (offset.isascii() and offset.isdigit() and int(offset) <= LARGEST_ID):
        raise Problem(422, "Last-Event-ID must be the id of a piece of this log.", "invalid_request")
    return stream_log(request, service, caller, job, attempt or None, int(offset or 0))


class Series(BaseModel):
    """One metric of one stage over its steps."""

    stage: str | None
    name: str
    points: list[tuple[int, float]] = Field(description="(step, value), steps ascending.")


@apart("readings", router.get("/jobs/{job_id}/metrics"))
def metrics(
    job_id: str,
    service: ServiceOf,
    caller: Viewer,
    name: Annotated[list[str] | None, Query(max_length=50, description="Only these.")] = None,
    stage: Annotated[str | None, Query(max_length=100)] = None,
    points: Annotated[int, Query(ge=2, le=20_000)] = 1000,
) -> list[Series]:
    """The curves of a job. A long one is thinned evenly; its first and last points stay."""
    return curves(service, caller, job_of(service, caller, job_id), points, names=name, stage=stage)


def curves(
    service: Service, caller: Caller, job: Job, points: int, names: list[str] | None = None, stage: str | None = None
) -> list[Series]:
    """Every metric of a job by stage. A step that was done again after a resume counts once, as it was done last."""
    series: dict[tuple[str | None, str], dict[int, float]] = {}
    after = 0
    while rows := service.store.events_after(job.id, after, limit=5000, project=caller.scope, kinds=["metric"]):
        after = rows[-1].id
        for row in rows:
            if stage is not None and row.stage != stage:
                continue
            values = row.fields.get("metrics")
            for key, value in values.items() if isinstance(values, Mapping) else ():
                number = isinstance(value, int | float) and not isinstance(value, bool)
                if number and isinstance(finite(value), int | float) and (names is None or key in names):
                    series.setdefault((row.stage, key), {})[row.step or 0] = float(value)
    return [
        Series(stage=of, name=key, points=thinned(sorted(line.items()), points)) for (of, key), line in series.items()
    ]


def thinned(line: list[tuple[int, float]], points: int) -> list[tuple[int, float]]:
    """At most so many points, evenly chosen, first and last among them."""
    if len(line) <= points:
        return line
    return [line[round(at * (len(line) - 1) / (points - 1))] for at in range(points)]


@router.get(
    "/jobs/{job_id}/recipe", response_class=PlainTextResponse, responses={200: {"content": {"application/yaml": {}}}}
)
def recipe(job_id: str, service: ServiceOf, caller: Viewer) -> Response:
    """The recipe as it was sent."""
    return PlainTextResponse(
        service.redactor.text(job_of(service, caller, job_id).request.recipe), media_type="application/yaml"
    )


class Change(BaseModel):
    """One key that differs."""

    key: str
    before: Any = Field(None, description="Null when the key is not there.")
    after: Any = None


class Difference(BaseModel):
    """What turns the first job's recipe, overrides applied, into the second's."""

    jobs: tuple[str, str]
    changes: list[Change]
    text: str = Field(description="The texts as a unified diff.")


@apart("readings", router.get("/jobs/{job_id}/diff/{other_id}"))
def diff(job_id: str, other_id: str, service: ServiceOf, caller: Viewer) -> Difference:
    """How two recipes differ."""
    one, other = job_of(service, caller, job_id), job_of(service, caller, other_id)
    before, after = (dict(_flat(service.redactor.plain(_plain(service, each)))) for each in (one, other))
    keys = [*before, *(key for key in after if key not in before)]
    left, right = one.request.recipe.splitlines(), other.request.recipe.splitlines()
    if comparable(left, right):
        lines: Iterable[str] = difflib.unified_diff(left, right, one.id, other.id, lineterm="")
    else:
        lines = [f"--- {one.id}", f"+++ {other.id}", *(f"-{line}" for line in left), *(f"+{line}" for line in right)]
    changes = [
        Change(key=key, before=before.get(key), after=after.get(key))
        for key in keys
        if before.get(key) != after.get(key)
    ]
    return Difference(jobs=(one.id, other.id), changes=changes, text=service.redactor.text("\n".join(lines)))


def comparable(left: list[str], right: list[str]) -> bool:
    """Whether two texts can be compared line by line in no time: `difflib` takes the cube of lines that repeat."""
    counts = Counter(right)
    return sum(counts[line] for line in left) <= MOST_PAIRS


def _plain(service: Service, job: Job) -> dict[str, Any]:
    return dict(service.checker.read(job.request.recipe, job.request.overrides).data)


def _flat(value: object, place: Position = ()) -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values; stages are named by their ids, so that one put in between changes nothing else."""
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from _flat(entry, (*place, str(key)))
    elif isinstance(value, list | tuple) and place == ("stages",):
        for position, entry in enumerate(value):
            name = entry.get("id") if isinstance(entry, Mapping) else None
            yield from _flat(entry, (*place, name if isinstance(name, str) else position))
    else:
        yield key_path(place), value


class CellDocument(BaseModel):
    """One combination of a study's matrix."""

    cell: str = Field(description="`cells/01`; the trials of a search are `search/…`.")
    labels: dict[str, str] = Field(description="By axis.")
    status: str = Field(description="waiting, running, done, reused, failed, refused or stopped.")
    message: str = ""
    seconds: float | None = None


@apart("readings", router.get("/jobs/{job_id}/cells"))
def cells(job_id: str, service: ServiceOf, caller: Viewer) -> list[CellDocument]:
    """The cells of a study and how each stands; an empty list for a job that is none."""
    job = job_of(service, caller, job_id)
    matrix = _plain(service, job).get("matrix")
    try:
        axes = axes_of(matrix) if isinstance(matrix, Mapping) else ()
    except ConfigIssues:
        axes = ()
    if not axes:
        return []
    documents = {
        f"cells/{number:02d}": CellDocument(cell=f"cells/{number:02d}", labels=_labels(axes, entries), status="waiting")
        for number, entries in enumerate(combinations(axes), start=1)
    }
    after = 0
    while rows := service.store.events_after(job.id, after, limit=5000, project=caller.scope, kinds=["cell"]):
        after = rows[-1].id
        for row in rows:
            name, fields = str(row.fields.get("cell")), service.redactor.plain(dict(row.fields))
            labels = fields.get("labels")
            document = documents.setdefault(
                name, CellDocument(cell=name, labels=labels if isinstance(labels, dict) else {}, status="waiting")
            )
            document.status = str(fields.get("status", document.status))
            document.message = str(fields.get("message") or "")
            document.seconds = row.fields.get("seconds") or document.seconds
    return list(documents.values())


def _labels(axes: tuple[Axis, ...], entries: tuple[MatrixValue, ...]) -> dict[str, str]:
    return {axis.name: entry.label for axis, entry in zip(axes, entries, strict=True)}


@apart("readings", router.get("/studies"))
def studies(
    service: ServiceOf, caller: Viewer, after: Annotated[str | None, Query(max_length=64)] = None, limit: int = LIMIT
) -> Page[JobDocument]:
    """The jobs whose recipe has a matrix, newest first."""
    documents: list[JobDocument] = []
    place = clean(after)
    looked = 0
    while rows := service.store.jobs(caller.scope, after=place, limit=500):
        place = rows[-1].id
        looked += len(rows)
        for row in rows:
            document = JobDocument.of(row, service.redactor)
            if document.study:
                documents.append(document)
            if len(documents) == limit:
                return page(documents, limit, row.id)
        if looked >= LOOKED_AT:
            return Page(data=documents, next=place)
    return page(documents, limit, None)
