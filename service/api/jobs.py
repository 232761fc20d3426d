"""Jobs: submit, look up, list by pages, pause, resume, cancel, retry, priority, delete."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pipelines.core.errors import CommandError, RecipeError
from pipelines.core.recipe import schema as recipe_schema
from service.api.context import Caller, Service, ServiceOf, Submitter, Viewer, refuse_without_isolation
from service.api.documents import AttemptDocument, JobDocument, Page, ResourcesDocument, StageDocument, page
from service.api.problems import MistakeDocument, Problem, described, problem_of
from service.disk import forget_job
from service.jobs.job import Job
from service.jobs.states import Move, State
from service.safety import secrets as secret_store
from service.submission import LARGEST_PRIORITY, Wish, fit
from service.submission import submit as take

router = APIRouter(tags=["jobs"], responses=described())
YAML = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml", "text/plain")
HALF = re.compile("[\ud800-\udfff]")
LIMIT = Query(50, ge=1, le=500, description="Entries of a page.")
JobId = Annotated[str, Field(pattern=r"^job-[0-9a-z]{26}$")]


class Submission(BaseModel):
    """A job as JSON. A YAML body is the recipe alone; the rest then stands in the query."""

    model_config = ConfigDict(extra="forbid")

    recipe: str | dict[str, Any] = Field(description="The recipe: YAML text, or the same as JSON.")
    overrides: list[Annotated[str, Field(max_length=10_000)]] = Field(
        default_factory=list, max_length=200, description="`key=value`, as on the command line."
    )
    priority: int = Field(0, ge=-LARGEST_PRIORITY, le=LARGEST_PRIORITY, description="Higher runs first.")
    resources: ResourcesDocument = Field(default_factory=ResourcesDocument)
    depends_on: list[JobId] = Field(
        default_factory=list, max_length=200, description="Jobs that must have succeeded before."
    )
    deadline: datetime | None = Field(None, description="When it must have started.")
    expected_seconds: float | None = Field(None, gt=0, le=1e9, description="How long it runs at most.")
    max_retries: int | None = Field(None, ge=0, le=20)
    max_seconds: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description=(
            "How long it may run, all attempts since the last retry together; then it is stopped with a checkpoint "
            "and fails with time_limit."
        ),
    )
    ttl_seconds_after_finished: float | None = Field(
        None, ge=0, le=1e9, description="How long it is kept after its end; then it is deleted. Published models stay."
    )
    secrets: list[Annotated[str, Field(pattern=f"^{secret_store.NAME.pattern}$")]] = Field(
        default_factory=list,
        max_length=20,
        description="Names of secrets that the job is given, as files that are read by name.",
    )

    @field_validator("deadline")
    @classmethod
    def _zoned(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("needs a time zone, such as 2026-11-21T22:00:00Z")
        return value

    def wish(self, key: str | None) -> Wish:
        """The same for the service."""
        return Wish(
            recipe=self.recipe,
            overrides=tuple(self.overrides),
            priority=self.priority,
            resources=self.resources.model_dump(exclude_none=True),
            depends_on=tuple(self.depends_on),
            deadline=self.deadline.timestamp() if self.deadline else None,
            expected_seconds=self.expected_seconds,
            max_retries=self.max_retries,
            max_seconds=self.max_seconds,
            ttl_seconds_after_finished=self.ttl_seconds_after_finished,
            secrets=tuple(self.secrets),
            idempotency_key=key,
        )


BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/Submission"}},
            "application/yaml": {"schema": {"type": "string", "description": "The recipe."}},
        },
    }
}
YAML_QUERY = ("priority", "deadline", "expected_seconds", "max_retries", "max_seconds", "ttl_seconds_after_finished")
RESOURCE_QUERY = ("gpus", "gpu_memory", "gpu_kind", "cpus", "memory", "hosts")
QUERY: list[dict[str, Any]] = [
    {"name": name, "in": "query", "description": "For a YAML body; see Submission.", "schema": {"type": kind}}
    for name, kind in (
        ("priority", "integer"),
        ("deadline", "string"),
        ("expected_seconds", "number"),
        ("max_retries", "integer"),
        ("max_seconds", "number"),
        ("ttl_seconds_after_finished", "number"),
        ("gpus", "integer"),
        ("gpu_memory", "integer"),
        ("gpu_kind", "string"),
        ("cpus", "integer"),
        ("memory", "integer"),
        ("hosts", "integer"),
    )
] + [
    {
        "name": name,
        "in": "query",
        "description": "For a YAML body, any number of times; see Submission.",
        "schema": {"type": "array", "items": {"type": "string"}},
    }
    for name in ("overrides", "depends_on", "secrets")
]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="The same key and request again give the same job.",
    ),
]


async def submission_of(request: Request) -> Submission:
    """The body, JSON or YAML. Raises Problem."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if kind in YAML:
        try:
            given: Any = {"recipe": body.decode("utf-8")}
        except UnicodeDecodeError:
            raise Problem(422, "The recipe is not UTF-8 text.", "bad_recipe") from None
        given |= {name: request.query_params[name] for name in YAML_QUERY if name in request.query_params}
        given |= {name: request.query_params.getlist(name) for name in ("overrides", "depends_on", "secrets")}
        given["resources"] = {
            name: request.query_params[name] for name in RESOURCE_QUERY if name in request.query_params
        }
    elif kind == "application/json" or kind.endswith("+json"):
        try:
            given = await request.json()
        except (ValueError, RecursionError):
            raise Problem(400, "The body is not valid JSON.", "invalid_request") from None
    else:
        raise Problem(
            415, "Send the recipe as application/yaml, or a submission as application/json.", "invalid_request"
        )
    try:
        return Submission.model_validate(given)
    except ValidationError as error:
        errors = [
            MistakeDocument(key=".".join(map(str, each["loc"])), message=f"{each['msg'][:1].lower()}{each['msg'][1:]}")
            for each in error.errors()
        ]
        raise Problem(422, "The submission has mistakes.", "invalid_request", errors) from None


@router.post(
    "/jobs",
    status_code=201,
    responses={
        200: {"model": JobDocument, "description": "The job that this key made before."},
        **described(404, 409, 415),
    },
    openapi_extra={**BODY, "parameters": QUERY},
)
async def submit(
    request: Request, response: Response, service: ServiceOf, caller: Submitter, key: Key = None
) -> JobDocument:
    """Submit a recipe. Every mistake in it comes back at once, with line and key."""
    refuse_without_isolation(service, caller)
    wish = (await submission_of(request)).wish(key)
    job, created = await service.lanes.checks.run(
        caller.token, take, service.store, service.settings, service.checker, caller.project, caller.token, wish
    )
    if created:
        service.wake()
    else:
        response.status_code = 200
        response.headers["Idempotent-Replayed"] = "true"
    response.headers["Location"] = f"/api/v1/jobs/{job.id}"
    return JobDocument.of(job, service.redactor)


class Validation(BaseModel):
    """A recipe that can be submitted."""

    valid: Literal[True] = Field(
        True, description="`false` stands in the problem that one with mistakes is answered with."
    )
    name: str
    stages: list[str]
    cells: int = Field(description="Of a study; 1 otherwise.")
    resources: ResourcesDocument
    waits_for: list[str] = Field(description="Jobs whose models it needs.")


@router.post("/validate", responses=described(415), openapi_extra={**BODY, "parameters": QUERY})
async def validate(request: Request, service: ServiceOf, caller: Viewer) -> Validation:
    """Check a submission without making a job of it."""
    wish = (await submission_of(request)).wish(None)
    try:
        fitting = await service.lanes.checks.run(
            caller.token, fit, service.store, service.settings, service.checker, caller.project, wish
        )
    except (RecipeError, CommandError) as error:
        refusal = problem_of(error)
        refusal.members["valid"] = False
        raise refusal from None
    checked = fitting.checked
    return Validation(
        name=checked.name,
        stages=list(checked.stages),
        cells=checked.cells,
        resources=ResourcesDocument.of(fitting.resources),
        waits_for=list(fitting.lookup.depends_on),
    )


@router.get("/schema", response_model=None)
def schema(caller: Viewer) -> dict[str, Any]:
    """The JSON Schema of a recipe, for editors and forms."""
    return _schema()


@lru_cache(maxsize=1)
def _schema() -> dict[str, Any]:
    """It takes half a second to make and never changes while the service runs."""
    return recipe_schema()


@router.get("/jobs")
def jobs(
    service: ServiceOf,
    caller: Viewer,
    state: Annotated[list[State] | None, Query(description="Any of these.")] = None,
    kind: Annotated[str | None, Query(pattern="^(api|openai)$")] = None,
    name: Annotated[str | None, Query(max_length=200)] = None,
    search: Annotated[str | None, Query(max_length=200, description="Part of the name.")] = None,
    after: Annotated[str | None, Query(max_length=64)] = None,
    limit: int = LIMIT,
) -> Page[JobDocument]:
    """The jobs of the project, newest first."""
    jobs = service.store.jobs(
        caller.scope, states=state, kind=kind, name=clean(name), search=clean(search), after=clean(after), limit=limit
    )
    return page([JobDocument.of(job, service.redactor) for job in jobs], limit, jobs[-1].id if jobs else None)


def clean(text: str | None) -> str | None:
    """A text that a database takes: PostgreSQL refuses the character 0."""
    if text is not None and "\x00" in text:
        raise Problem(422, "The character 0 cannot occur.", "invalid_request")
    if text is not None and HALF.search(text):
        raise Problem(422, "Half of a character cannot occur.", "invalid_request")
    return text


def job_of(service: Service, caller: Caller, job_id: str) -> Job:
    """A job that the caller may see. Raises NotFound."""
    return service.store.job(clean(job_id) or "", caller.scope)


@router.get("/jobs/counts", tags=["jobs"])
def counts(service: ServiceOf, caller: Viewer) -> dict[State, int]:
    """How many jobs are in each state."""
    return service.store.count(caller.scope)


@router.get("/jobs/{job_id}", responses=described(404))
def job(job_id: str, service: ServiceOf, caller: Viewer) -> JobDocument:
    """One job."""
    return JobDocument.of(job_of(service, caller, job_id), service.redactor)


@router.get("/jobs/{job_id}/attempts", responses=described(404))
def attempts(job_id: str, service: ServiceOf, caller: Viewer) -> list[AttemptDocument]:
    """Every try at a job."""
    job = job_of(service, caller, job_id)
    return [AttemptDocument.of(each, service.redactor) for each in service.store.attempts(job.id, caller.scope)]


@router.get("/jobs/{job_id}/stages", responses=described(404))
def stages(job_id: str, service: ServiceOf, caller: Viewer) -> list[StageDocument]:
    """The complete stages of a job with their metrics."""
    job = job_of(service, caller, job_id)
    return [StageDocument.of(each) for each in service.store.stage_results(job.id, caller.scope)]


def _moved(service: Service, caller: Caller, job_id: str, move: Move) -> JobDocument:
    job = service.store.move(clean(job_id) or "", move, project=caller.scope)
    service.wake()
    return JobDocument.of(job, service.redactor)


@router.post("/jobs/{job_id}/pause", responses=described(404, 409))
def pause(job_id: str, service: ServiceOf, caller: Submitter) -> JobDocument:
    """Let it save a checkpoint and give its resources back."""
    return _moved(service, caller, job_id, Move.PAUSE)


@router.post("/jobs/{job_id}/resume", responses=described(404, 409))
def resume(job_id: str, service: ServiceOf, caller: Submitter) -> JobDocument:
    """Let a paused job go on from its checkpoint."""
    return _moved(service, caller, job_id, Move.RESUME)


@router.post("/jobs/{job_id}/cancel", responses=described(404, 409))
def cancel(job_id: str, service: ServiceOf, caller: Submitter) -> JobDocument:
    """Stop it for good."""
    return _moved(service, caller, job_id, Move.CANCEL)


@router.post("/jobs/{job_id}/retry", responses=described(404, 409))
def retry(job_id: str, service: ServiceOf, caller: Submitter) -> JobDocument:
    """Put a failed or cancelled job back into the queue; finished stages are kept."""
    return _moved(service, caller, job_id, Move.RETRY)


@router.delete("/jobs/{job_id}", status_code=204, response_class=Response, responses=described(404, 409))
def delete(job_id: str, service: ServiceOf, caller: Submitter) -> Response:
    """Delete a job that has ended: its folder, its log, its events and results. Models that it published stay."""
    job = job_of(service, caller, job_id)
    forget_job(service.store, service.settings, job.id, job.project)
    return Response(status_code=204)


class Priority(BaseModel):
    """A job's new priority."""

    model_config = ConfigDict(extra="forbid")

    priority: int = Field(ge=-LARGEST_PRIORITY, le=LARGEST_PRIORITY)


@router.post("/jobs/{job_id}/priority", responses=described(404, 409))
def set_priority(job_id: str, body: Priority, service: ServiceOf, caller: Submitter) -> JobDocument:
    """Change the priority of a job that has not ended."""
    job = service.store.set_priority(clean(job_id) or "", body.priority, caller.scope)
    service.wake()
    return JobDocument.of(job, service.redactor)
