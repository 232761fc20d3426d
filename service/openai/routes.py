"""The routes of /v1: files, fine_tuning/jobs and models."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from service.api.context import Caller, Service, ServiceOf, Submitter, Viewer, apart
from service.api.files import file_of, refuse_used, sent
from service.api.jobs import Key, clean
from service.api.models import remove
from service.api.problems import Problem
from service.jobs.job import Event, Job
from service.jobs.states import Move, State
from service.openai.creation import PURPOSE, NewJob
from service.openai.creation import create as create_job
from service.openai.eval_requests import PURPOSE as EVALS
from service.openai.file_form import FileForm
from service.openai.objects import (
    ERROR,
    event_object,
    file_object,
    job_id_of,
    job_object,
    listed,
    model_object,
    public_id,
    published_object,
    settled,
    step_metrics,
)
from service.openai.recipes import STAGE_IDS, scratch
from service.openai.training_files import examine
from service.store.errors import NotFound
from service.store.files import File
from service.uploads import append, begin, discard, file_path, finish, refuse_upload, reserve

router = APIRouter(tags=["openai"], responses=dict.fromkeys((400, 401, 403, 404, 409, 413, 422, 429), ERROR))
UPLOADED = (PURPOSE, EVALS)
PURPOSES = (*UPLOADED, "fine-tune-results")
Limit = Annotated[int, Query(ge=1, le=100)]
After = Annotated[str | None, Query(max_length=100)]
METADATA = re.compile(r"metadata\[(.*)\]")


FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "description": "fine-tune or evals"},
                    },
                }
            }
        },
    }
}


@router.post("/files", openapi_extra=FORM)
async def upload(request: Request, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """Upload a training file. Every line is checked; what is wrong is told with its number.

    The form is read here and not declared, because declared ones are read before it is known who sends them. The file
    in it is written as it arrives, after room for it was reserved.
    """
    store, settings = service.store, service.settings
    form = FileForm(request)
    await run_in_threadpool(refuse_upload, store, settings, caller.project, form.least)
    filename = await form.filename()
    if filename is None or "purpose" in form.fields:
        _purpose(form)
    if filename is None:
        raise Problem(400, "The field 'file' is missing.", "invalid_request", param="file")
    name, purpose = clean(filename) or "file.jsonl", form.fields.get("purpose", PURPOSE)
    file = await run_in_threadpool(begin, store, settings, caller.project, name, purpose, by=caller.token)
    try:
        await run_in_threadpool(reserve, store, settings, file, form.least)
        await append(store, settings, file, 0, form.content())
        return await service.lanes.fetches.run(caller.token, _kept, service, file, _purpose(form))
    except BaseException:
        await run_in_threadpool(discard, store, settings, file)
        raise


def _purpose(form: FileForm) -> str:
    """What the file is for. Raises Problem."""
    purpose = form.fields.get("purpose")
    if purpose not in UPLOADED:
        raise Problem(
            400,
            f"The purpose {str(purpose)[:40]!r} is not offered; upload with purpose '{PURPOSE}' or '{EVALS}'.",
            "invalid_purpose",
            param="purpose",
        )
    return purpose


def _kept(service: Service, file: File, purpose: str) -> dict[str, Any]:
    finish(service.store, service.settings, file)
    with open(file_path(service.settings, file), "rb") as stored:
        report = examine(stored, "eval" if purpose == EVALS else None)
    if report.mistakes:
        use = "evals" if purpose == EVALS else "fine-tuning"
        raise Problem(
            400, f"The file cannot be used for {use}.\n{report.sentence}", "invalid_file_format", param="file"
        )
    counted = {"shape": report.shape, "rows": report.rows, "characters": report.characters}
    return file_object(service.store.update_file_openai(file.id, counted, file.project, purpose=purpose))


@router.get("/files")
def files(
    service: ServiceOf,
    caller: Viewer,
    purpose: Annotated[str | None, Query(max_length=40)] = None,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
) -> dict[str, Any]:
    """The files of this surface."""
    files: list[File] = []
    place = clean(after)
    while len(files) <= limit and (
        rows := service.store.files(
            caller.scope, purpose=clean(purpose), after=place, limit=1000, newest_first=order == "desc"
        )
    ):
        place = rows[-1].id
        files += [row for row in rows if row.purpose in PURPOSES]
    return listed([file_object(file) for file in files[:limit]], len(files) > limit)


def _file(service: Service, caller: Caller, file_id: str) -> File:
    file = file_of(service, caller, file_id)
    if file.purpose not in PURPOSES:
        raise NotFound("file", file_id)
    return file


@router.get("/files/{file_id}")
def file(file_id: str, service: ServiceOf, caller: Viewer) -> dict[str, Any]:
    """One file."""
    return file_object(_file(service, caller, file_id))


@router.get(
    "/files/{file_id}/content",
    response_class=Response,
    responses={
        200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
        416: ERROR,
    },
)
def content(file_id: str, service: ServiceOf, caller: Viewer) -> Response:
    """The bytes of a file."""
    return sent(service, _file(service, caller, file_id))


@router.delete("/files/{file_id}")
def delete_file(file_id: str, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """Delete a file that no waiting or running job needs."""
    file = _file(service, caller, file_id)
    refuse_used(service, file)
    discard(service.store, service.settings, file)
    return {"id": file.id, "object": "file", "deleted": True}


@apart("checks", router.post("/fine_tuning/jobs"))
def create(body: NewJob, service: ServiceOf, caller: Submitter, key: Key = None) -> dict[str, Any]:
    """Make a fine-tuning job."""
    return job_object(create_job(service, caller, body, key), service.redactor)


def _job(service: Service, caller: Caller, identifier: str) -> Job:
    job = service.store.job(clean(job_id_of(identifier)) or "", caller.scope)
    if job.request.kind != "openai":
        raise NotFound("fine-tuning job", identifier)
    return job


@apart("readings", router.get("/fine_tuning/jobs"))
def jobs(
    request: Request, service: ServiceOf, caller: Viewer, after: After = None, limit: Limit = 20
) -> dict[str, Any]:
    """The fine-tuning jobs, newest first. `metadata[key]=value` keeps those with that entry."""
    wanted = {
        match.group(1): value
        for key, value in request.query_params.items()
        if (match := METADATA.fullmatch(key)) is not None
    }
    jobs: list[Job] = []
    place = job_id_of(clean(after) or "") if after else None
    while len(jobs) <= limit and (rows := service.store.jobs(caller.scope, kind="openai", after=place, limit=200)):
        place = rows[-1].id
        jobs += [row for row in rows if wanted.items() <= dict(row.request.openai.get("metadata") or {}).items()]
    return listed([job_object(settled(service, job), service.redactor) for job in jobs[:limit]], len(jobs) > limit)


@router.get("/fine_tuning/jobs/{job_id}")
def job(job_id: str, service: ServiceOf, caller: Viewer) -> dict[str, Any]:
    """One fine-tuning job."""
    return job_object(settled(service, _job(service, caller, job_id)), service.redactor)


def _moved(service: Service, caller: Caller, job_id: str, move: Move) -> dict[str, Any]:
    moved = service.store.move(_job(service, caller, job_id).id, move, project=caller.scope)
    service.wake()
    return job_object(moved, service.redactor)


@router.post("/fine_tuning/jobs/{job_id}/cancel")
def cancel(job_id: str, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """Stop a job for good."""
    return _moved(service, caller, job_id, Move.CANCEL)


@router.post("/fine_tuning/jobs/{job_id}/pause")
def pause(job_id: str, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """Let a job save a checkpoint and give its resources back."""
    return _moved(service, caller, job_id, Move.PAUSE)


@router.post("/fine_tuning/jobs/{job_id}/resume")
def resume(job_id: str, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """Let a paused job go on."""
    return _moved(service, caller, job_id, Move.RESUME)


@apart("readings", router.get("/fine_tuning/jobs/{job_id}/events"))
def events(job_id: str, service: ServiceOf, caller: Viewer, after: After = None, limit: Limit = 20) -> dict[str, Any]:
    """What happened, newest first."""
    job = _job(service, caller, job_id)
    before = job.last_event + 1
    if after is not None:
        number = after.rpartition("-")[2]
        if not (number.isascii() and number.isdigit() and len(number) < 19):
            raise Problem(400, "`after` must be the id of an event.", "invalid_request", param="after")
        before = min(before, int(number))
    total = _total_steps(service, job)
    objects: list[dict[str, Any]] = []
    while before > 1 and len(objects) <= limit:
        window = max(0, before - 1 - 500)
        rows = [row for row in service.store.events_after(job.id, window, limit=500) if row.id < before]
        objects += [
            made for row in reversed(rows) if (made := event_object(job, row, total, service.redactor)) is not None
        ]
        before = window + 1
    return listed(objects[:limit], len(objects) > limit)


def _total_steps(service: Service, job: Job) -> int | None:
    rows = service.store.events_after(job.id, 0, limit=50, kinds=["progress"])
    return next(
        (
            int(row.fields["total"])
            for row in rows
            if row.stage in STAGE_IDS and isinstance(row.fields.get("total"), int)
        ),
        None,
    )


@apart("readings", router.get("/fine_tuning/jobs/{job_id}/checkpoints"))
def checkpoints(
    job_id: str, service: ServiceOf, caller: Viewer, after: After = None, limit: Limit = 10
) -> dict[str, Any]:
    """The checkpoints of a job, newest first. The last one of a finished job is its model; earlier ones serve
    resuming only."""
    job = _job(service, caller, job_id)
    rows = service.store.events_after(job.id, 0, limit=100_000, kinds=["checkpoint", "metric"])
    losses = {row.step: step_metrics(row) for row in rows if row.event == "metric" and row.stage in STAGE_IDS}
    steps = {
        row.step: row for row in rows if row.event == "checkpoint" and row.stage in STAGE_IDS and row.step is not None
    }
    made = [
        _checkpoint(job, row, losses.get(step, {}), last=step == max(steps))
        for step, row in sorted(steps.items(), reverse=True)
    ]
    if after is not None:
        places = [each["id"] for each in made]
        made = made[places.index(after) + 1 :] if after in places else []
    return listed(made[:limit], len(made) > limit)


def _checkpoint(job: Job, event: Event, numbers: dict[str, object], last: bool) -> dict[str, Any]:
    name = str(job.request.openai.get("fine_tuned_model"))
    final = last and job.state is State.SUCCEEDED
    return {
        "object": "fine_tuning.job.checkpoint",
        "id": f"ftckpt-{job.id.removeprefix('job-')}-{event.step}",
        "created_at": int(event.time),
        "fine_tuning_job_id": public_id(job),
        "fine_tuned_model_checkpoint": name if final else f"{name}:ckpt-step-{event.step}",
        "step_number": event.step,
        "metrics": {"step": event.step, **{key: value for key, value in numbers.items() if key.endswith("_loss")}},
    }


@apart("readings", router.get("/models"))
def models(service: ServiceOf, caller: Viewer) -> dict[str, Any]:
    """What can be trained from scratch, what the project has published, and what others let it ask."""
    objects = [model_object(name, 0, "finery") for name in scratch()]
    names = set()
    after = None
    while rows := service.store.models(caller.scope, after=after, limit=500):
        after = rows[-1].id
        for row in rows:
            if row.name not in names:
                names.add(row.name)
                objects.append(published_object(row))
    for row in service.store.granted_models(caller.project) if caller.scope is not None else ():
        if row.name not in names:
            names.add(row.name)
            objects.append(published_object(row))
    return {"object": "list", "data": objects}


@router.get("/models/{model:path}")
def model(model: str, service: ServiceOf, caller: Viewer) -> dict[str, Any]:
    """One model."""
    if model in scratch():
        return model_object(model, 0, "finery")
    name = clean(model) or ""
    try:
        return published_object(service.store.model(caller.project, name))
    except NotFound:
        granted = service.store.granted_models(caller.project, name)
        if not granted:
            raise
        return published_object(granted[0])


@router.delete("/models/{model:path}")
def delete_model(model: str, service: ServiceOf, caller: Submitter) -> dict[str, Any]:
    """Delete a fine-tuned model."""
    published = service.store.model(caller.project, clean(model) or "")
    remove(service, published)
    return {"id": published.name, "object": "model", "deleted": True}
