"""What the API answers with, as pydantic models: the OpenAPI document is made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from service.jobs.job import Attempt, Event, Host, Job, Resources
from service.jobs.states import Move, Reason, State, allowed
from service.safety.redaction import Redactor
from service.store.files import File
from service.store.models import ModelName, PublishedModel
from service.store.projects import Token
from service.store.results import StageResult, StoredScore

Item = TypeVar("Item")
ACTIONS = {Move.PAUSE: "pause", Move.RESUME: "resume", Move.CANCEL: "cancel", Move.RETRY: "retry"}


def moment(seconds: float | None) -> datetime | None:
    """Seconds since 1970 as RFC 3339 has it."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


class Page(BaseModel, Generic[Item]):
    """Part of a list, newest first."""

    data: list[Item]
    next: str | None = Field(None, description="Pass it as `after` for the page that follows; null on the last one.")


def page(items: list[Item], limit: int, last: str | None) -> Page[Item]:
    """A page; it is the last one when it is not full."""
    return Page(data=items, next=last if len(items) == limit else None)


class ResourcesDocument(BaseModel):
    """What each of `hosts` hosts must give."""

    model_config = ConfigDict(extra="forbid")

    gpus: int | None = Field(None, ge=0, le=1024)
    gpu_memory: int | None = Field(None, ge=0, lt=2**62, description="Bytes that each GPU must have.")
    gpu_kind: str | None = Field(
        None, max_length=100, pattern=r"^[^\x00]*$", description="Part of the GPU's name, such as h200."
    )
    cpus: int | None = Field(None, ge=1, le=4096, description="Cores; by default one for each process of the recipe.")
    memory: int | None = Field(None, ge=0, lt=2**62, description="Bytes of main memory.")
    hosts: int | None = Field(None, ge=1, le=1024)

    @classmethod
    def of(cls, resources: Resources) -> ResourcesDocument:
        return cls.model_construct(**asdict(resources))


class JobDocument(BaseModel):
    """A job and where it stands."""

    id: str
    name: str
    project: str
    kind: Literal["api", "openai"]
    state: State
    reason: Reason | None = Field(description="Why it failed.")
    message: str = Field(description="The sentence beside the reason.")
    priority: int
    resources: ResourcesDocument
    overrides: list[str]
    depends_on: list[str]
    deadline: datetime | None
    max_seconds: float | None = Field(description="How long it may run, where it named a limit.")
    ttl_seconds_after_finished: float | None = Field(
        description="How long it is kept after its end, where it named a time."
    )
    created: datetime
    updated: datetime
    started: datetime | None
    finished: datetime | None
    attempts: int
    retries: int
    preemptions: int
    models: dict[str, str] = Field(
        description="What each reference to a model, such as demo@production, stood for when it was submitted: demo@3."
    )
    progress: dict[str, Any] = Field(description="Stage, step, total and loss of its newest events.")
    study: bool = Field(description="Whether its recipe has a matrix.")
    actions: list[Literal["pause", "resume", "cancel", "retry"]] = Field(description="What can be asked of it now.")
    last_event: int

    @classmethod
    def of(cls, job: Job, redactor: Redactor) -> JobDocument:
        return cls(
            id=job.id,
            name=job.name,
            project=job.project,
            kind=job.request.kind,
            state=job.state,
            reason=job.reason,
            message=redactor.text(job.message),
            priority=job.priority,
            resources=ResourcesDocument.of(job.request.resources),
            overrides=list(job.request.overrides),
            depends_on=list(job.request.depends_on),
            deadline=moment(job.request.deadline),
            max_seconds=job.request.max_seconds,
            ttl_seconds_after_finished=job.request.ttl_seconds_after_finished,
            created=moment(job.created),
            updated=moment(job.updated),
            started=moment(job.started),
            finished=moment(job.finished),
            attempts=job.attempts,
            retries=job.retries,
            preemptions=job.preemptions,
            models={name: version["reference"] for name, version in job.request.models.items()},
            progress=redactor.plain(job.progress),
            study=is_study(job.request.recipe),
            actions=[ACTIONS[move] for move in allowed(job.state) if move in ACTIONS],
            last_event=job.last_event,
        )


def is_study(recipe: str) -> bool:
    """Whether a recipe that was accepted has a matrix. Accepted ones have their top-level keys at the start of a
    line."""
    return any(line.startswith(("matrix:", '"matrix":', "'matrix':")) for line in recipe.splitlines()) or (
        recipe.lstrip().startswith("{") and "matrix" in recipe
    )


class AttemptDocument(BaseModel):
    """One try at a job."""

    id: str
    number: int
    executor: str
    state: str
    hosts: list[dict[str, Any]] = Field(description="The hosts and the indices of their GPUs.")
    created: datetime
    started: datetime | None
    ended: datetime | None
    exit_code: int | None
    reason: Reason | None = Field(description="Why it ended early, or is being stopped.")
    message: str
    skipped_lines: int = Field(description="Lines of its events.jsonl that were no events.")

    @classmethod
    def of(cls, attempt: Attempt, redactor: Redactor) -> AttemptDocument:
        return cls(
            id=attempt.id,
            number=attempt.number,
            executor=attempt.executor,
            state=attempt.state,
            hosts=[{"host": part.host, "gpus": list(part.gpus)} for part in attempt.placement],
            created=moment(attempt.created),
            started=moment(attempt.started),
            ended=moment(attempt.ended),
            exit_code=attempt.exit_code,
            reason=attempt.reason,
            message=redactor.text(attempt.message),
            skipped_lines=attempt.skipped_lines,
        )


class StageDocument(BaseModel):
    """A complete stage of a job."""

    stage: str
    seconds: float
    reused: bool
    metrics: dict[str, Any]
    finished: datetime

    @classmethod
    def of(cls, result: StageResult) -> StageDocument:
        return cls(
            stage=result.stage,
            seconds=result.seconds,
            reused=result.reused,
            metrics=finite(result.metrics),
            finished=moment(result.finished),
        )


def finite(value: object) -> Any:
    """Plain data without NaN and infinity, which JSON has not."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


def plain_event(event: Event, redactor: Redactor) -> dict[str, Any]:
    """An event as `events.jsonl` has it, the fields beside `event`, without secrets."""
    made: dict[str, Any] = {
        "id": event.id,
        "time": datetime.fromtimestamp(event.time, UTC).isoformat(),
        "event": event.event,
    }
    for key in ("stage", "step", "attempt"):
        if getattr(event, key) is not None:
            made[key] = getattr(event, key)
    rest: dict[str, Any] = finite(redactor.plain(event.fields))
    return {**rest, **made}


class FileDocument(BaseModel):
    """An uploaded file."""

    id: str = Field(description="Recipes name it `file:ID`.")
    project: str
    filename: str
    purpose: str
    state: Literal["uploading", "ready"]
    bytes: int | None
    sha256: str | None
    offset: int = Field(description="Bytes that have arrived.")
    created: datetime

    @classmethod
    def of(cls, file: File, offset: int | None = None) -> FileDocument:
        return cls(
            id=file.id,
            project=file.project,
            filename=file.filename,
            purpose=file.purpose,
            state=file.state,
            bytes=file.bytes,
            sha256=file.sha256,
            offset=file.offset if offset is None else offset,
            created=moment(file.created),
        )


class ModelDocument(BaseModel):
    """A version of a published model."""

    id: str
    name: str = Field(description="Recipes name its newest version `model:NAME`.")
    version: int = Field(description="Recipes name it `model:NAME@VERSION`.")
    aliases: list[str] = Field(description="What names it now: latest, best, production and others.")
    project: str
    fingerprint: str
    job: str
    base: str
    parameters: int | None
    scores: dict[str, Any]
    created: datetime
    deleted: datetime | None = Field(
        None, description="When it was deleted; until its grace period ends it can be restored."
    )

    @classmethod
    def of(cls, model: PublishedModel, about: ModelName | None = None) -> ModelDocument:
        """`about` is what belongs to its name."""
        return cls(
            id=model.id,
            name=model.name,
            version=model.version,
            aliases=[each.alias for each in about.aliases if each.model == model.id] if about else [],
            project=model.project,
            fingerprint=model.fingerprint,
            job=model.job,
            base=public(model.base),
            parameters=model.parameters,
            scores=finite(model.scores),
            created=moment(model.created),
            deleted=moment(model.deleted),
        )


def public(base: str) -> str:
    """What a model was made from, without the server's folders."""
    return base.rstrip("/").rpartition("/")[2] if base.startswith("/") else base


class ScoreDocument(BaseModel):
    """A line of a leaderboard."""

    rank: int
    job: str
    job_name: str
    project: str
    stage: str
    model: str | None
    benchmark: str
    metric: str
    value: float
    created: datetime

    @classmethod
    def of(cls, rank: int, score: StoredScore) -> ScoreDocument:
        return cls(
            rank=rank,
            job=score.job,
            job_name=score.job_name,
            project=score.project,
            stage=score.stage,
            model=score.model,
            benchmark=score.benchmark,
            metric=score.metric,
            value=score.value,
            created=moment(score.created),
        )


class GpuDocument(BaseModel):
    """One GPU of a host."""

    index: int
    kind: str
    memory: int
    attempt: str | None = Field(description="The attempt that holds it.")


class HostDocument(BaseModel):
    """A machine that runs attempts."""

    name: str
    executor: str
    state: str
    cpus: int
    memory: int
    gpus: list[GpuDocument]
    seen: datetime
    isolation: str = Field(
        "", description="What keeps its attempts apart from the server: bubblewrap, landlock, container, host or none."
    )
    left_open: list[str] = Field(default_factory=list, description="What an attempt can still do there.")

    @classmethod
    def of(cls, host: Host, holders: Mapping[tuple[str, int], str]) -> HostDocument:
        gpus = [
            GpuDocument(
                index=slot.index, kind=slot.kind, memory=slot.memory, attempt=holders.get((host.name, slot.index))
            )
            for slot in host.slots
        ]
        isolation = host.info.get("isolation") or {}
        return cls(
            name=host.name,
            executor=host.executor,
            state=host.state,
            cpus=host.cpus,
            memory=host.memory,
            gpus=gpus,
            seen=moment(host.seen),
            isolation=str(isolation.get("mode", "")),
            left_open=[str(each) for each in isolation.get("left_open", ())],
        )


class TokenDocument(BaseModel):
    """A token, without what makes it one."""

    id: str
    prefix: str
    project: str
    role: Literal["viewer", "submitter", "admin"]
    name: str
    created: datetime
    expires: datetime | None
    revoked: datetime | None
    last_used: datetime | None

    @classmethod
    def of(cls, token: Token) -> TokenDocument:
        return cls(
            id=token.id,
            prefix=token.prefix,
            project=token.project,
            role=token.role,
            name=token.name,
            created=moment(token.created),
            expires=moment(token.expires),
            revoked=moment(token.revoked),
            last_used=moment(token.last_used),
        )
