"""The tables, as SQLAlchemy Core, and from their rows to values and back.

Times are seconds since 1970 (UTC), sizes are bytes. `migrations/` builds the same schema step by step; a test holds the
two against each other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    RowMapping,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

from service.jobs.job import Attempt, Event, HostShare, Job, JobRequest, Lease, Placement, Resources
from service.jobs.states import AttemptState, Reason, State

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class SafeText(TypeDecorator[str]):
    """Text that every database takes: PostgreSQL refuses NUL, and UTF-8 has no halves of surrogate pairs."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: object, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return str(value).replace("\0", "").encode("utf-8", "replace").decode("utf-8")

    def coerce_compared_value(self, op: object, value: object) -> Any:
        return self


def _time(name: str, **options: Any) -> Column[float]:
    return Column(name, Double, **options)


def _json(name: str) -> Column[Any]:
    return Column(name, JSON, nullable=False)


projects = Table(
    "projects",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("weight", Double, nullable=False),  # share of the hosts beside other projects
    Column("max_gpus", Integer),
    Column("max_running", Integer),
    Column("max_queued", Integer),
    Column("max_bytes", BigInteger),  # on the disk, of everything that it keeps
    _json("settings"),
    _time("created", nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("prefix", SafeText, nullable=False, unique=True),
    Column("sha256", SafeText, nullable=False),
    Column("project", SafeText, ForeignKey("projects.name"), nullable=False),
    Column("role", SafeText, nullable=False),
    Column("name", SafeText, nullable=False),
    _time("created", nullable=False),
    _time("expires"),
    _time("revoked"),
    _time("last_used"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("project", SafeText, ForeignKey("projects.name"), nullable=False),
    Column("kind", SafeText, nullable=False),
    Column("name", SafeText, nullable=False),
    Column("recipe", SafeText, nullable=False),
    _json("overrides"),
    _json("resources"),
    _json("depends_on"),
    _json("secrets"),
    _json("openai"),
    Column("models", JSON, nullable=False, server_default="{}"),  # reference of the recipe -> id of the version
    Column("digest", SafeText, nullable=False),
    Column("idempotency_key", SafeText),
    Column("submitted_by", SafeText, nullable=False),
    Column("asked_priority", Integer, nullable=False),
    _time("deadline"),
    _time("expected_seconds"),
    Column("max_retries", Integer, nullable=False),
    _time("max_seconds"),
    _time("ttl_seconds_after_finished"),
    # what changes
    Column("state", SafeText, nullable=False),
    Column("reason", SafeText),
    Column("message", SafeText, nullable=False),
    Column("priority", Integer, nullable=False),
    _time("created", nullable=False),
    _time("updated", nullable=False),
    _time("started"),
    _time("finished"),
    _time("not_before", nullable=False),
    Column("retries", Integer, nullable=False),
    Column("preemptions", Integer, nullable=False),
    Column("attempt", SafeText),
    Column("attempts", Integer, nullable=False),
    Column("attempts_before_retry", Integer, nullable=False, server_default="0"),
    Column("last_event", BigInteger, nullable=False),
    _json("progress"),
    UniqueConstraint("project", "idempotency_key"),
    Index(None, "project", "id"),
    Index(None, "project", "state", "id"),
    Index(None, "state", "id"),
    Index(None, "updated"),
    Index(None, "finished"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("job", SafeText, ForeignKey("jobs.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("fencing", BigInteger, nullable=False),
    Column("executor", SafeText, nullable=False),
    _json("placement"),
    _json("resources"),
    Column("state", SafeText, nullable=False),
    _json("handle"),
    _time("created", nullable=False),
    _time("started"),
    _time("ended"),
    Column("exit_code", Integer),
    Column("reason", SafeText),
    Column("message", SafeText, nullable=False),
    Column("ingested", BigInteger, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("skipped_lines", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("job", "number"),
    Index(None, "state"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", SafeText, primary_key=True),  # a job's id, or `scheduler`
    Column("holder", SafeText, nullable=False),
    Column("fencing", BigInteger, nullable=False),  # only ever grows; the row stays when the lease ends
    _time("expires", nullable=False),
    Column("attempt", SafeText),
    Index(None, "holder"),
)

events = Table(
    "events",
    metadata,
    Column("job", SafeText, ForeignKey("jobs.id"), primary_key=True),
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    _time("time", nullable=False),
    Column("event", SafeText, nullable=False),
    Column("stage", SafeText),
    Column("step", BigInteger),
    Column("attempt", SafeText),
    _json("fields"),
)

hosts = Table(
    "hosts",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("executor", SafeText, nullable=False),
    Column("cpus", Integer, nullable=False),
    Column("memory", BigInteger, nullable=False),
    Column("state", SafeText, nullable=False),
    _time("seen", nullable=False),
    _json("info"),
)

gpu_slots = Table(
    "gpu_slots",
    metadata,
    Column("host", SafeText, ForeignKey("hosts.name"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", SafeText, nullable=False),
    Column("memory", BigInteger, nullable=False),
    Column("uuid", SafeText, nullable=False),
    Column("present", Boolean, nullable=False),  # whether the host's last report named it
    Column("attempt", SafeText),  # who holds it
)

stage_results = Table(
    "stage_results",
    metadata,
    Column("job", SafeText, ForeignKey("jobs.id"), primary_key=True),
    Column("stage", SafeText, primary_key=True),
    Column("attempt", SafeText, nullable=False),
    Column("fingerprint", SafeText, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("reused", Boolean, nullable=False),
    _json("metrics"),
    _time("finished", nullable=False),
)

files = Table(
    "files",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("project", SafeText, ForeignKey("projects.name"), nullable=False),
    Column("filename", SafeText, nullable=False),
    Column("purpose", SafeText, nullable=False),
    Column("state", SafeText, nullable=False),
    Column("bytes", BigInteger),
    Column("sha256", SafeText),
    Column("offset", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False, server_default="0"),
    Column("created_by", SafeText, nullable=False),
    _time("created", nullable=False),
    _time("completed"),
    _json("openai"),
    Index(None, "project", "id"),
    Index(None, "project", "sha256"),
)

models = Table(
    "models",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("project", SafeText, ForeignKey("projects.name"), nullable=False),
    Column("name", SafeText, nullable=False),
    Column("fingerprint", SafeText, nullable=False),
    Column("job", SafeText, nullable=False),  # it may be deleted, the model stays
    Column("path", SafeText, nullable=False),
    Column("base", SafeText, nullable=False),
    Column("parameters", BigInteger),
    _json("scores"),
    _json("openai"),
    _time("created", nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
    _time("deleted"),  # marked, and purged when the grace period is over
    UniqueConstraint("project", "name", "fingerprint"),
    UniqueConstraint("project", "name", "version"),
    Index(None, "project", "id"),
    Index(None, "deleted"),
)

model_names = Table(
    "model_names",
    metadata,
    Column("project", SafeText, ForeignKey("projects.name"), primary_key=True),
    Column("name", SafeText, primary_key=True),
    Column("last_version", Integer, nullable=False),  # only ever grows
    Column("benchmark", SafeText, nullable=False),
    Column("metric", SafeText, nullable=False),
)

model_aliases = Table(
    "model_aliases",
    metadata,
    Column("project", SafeText, ForeignKey("projects.name"), primary_key=True),
    Column("name", SafeText, primary_key=True),
    Column("alias", SafeText, primary_key=True),
    Column("model", SafeText, ForeignKey("models.id"), nullable=False),
    Column("set_by", SafeText, nullable=False),
    _time("set", nullable=False),
    Index(None, "model"),
)

model_comparisons = Table(
    "model_comparisons",
    metadata,
    Column("model", SafeText, ForeignKey("models.id"), primary_key=True),
    Column("against", SafeText, ForeignKey("models.id"), primary_key=True),
    _json("document"),
    _time("created", nullable=False),
)

disk_usage = Table(
    "disk_usage",
    metadata,
    Column("project", SafeText, ForeignKey("projects.name"), primary_key=True),
    Column("kind", SafeText, primary_key=True),  # jobs, models, stages or downloads
    Column("thing", SafeText, primary_key=True),  # id of the job or model; empty for the other two
    Column("bytes", BigInteger, nullable=False),
    _time("measured", nullable=False),
)

model_permissions = Table(
    "model_permissions",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("owner", SafeText, ForeignKey("projects.name"), nullable=False),  # whose model it is
    Column("model", SafeText, nullable=False),  # its name: every publication under it
    Column("project", SafeText, ForeignKey("projects.name"), nullable=False),  # who may ask it
    Column("created_by", SafeText, nullable=False),
    _time("created", nullable=False),
    UniqueConstraint("owner", "model", "project"),
    Index(None, "project", "model"),
)

evals = Table(
    "evals",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("project", SafeText, ForeignKey("projects.name"), nullable=False),
    Column("name", SafeText, nullable=False),
    _json("data_source_config"),
    _json("testing_criteria"),
    _json("metadata"),
    Column("created_by", SafeText, nullable=False),
    _time("created", nullable=False),
    _time("updated", nullable=False),
    Column("bytes", BigInteger, nullable=False, server_default="0"),  # that the database keeps of it
    Index(None, "project", "id"),
    Index(None, "project", "updated"),
)

eval_runs = Table(
    "eval_runs",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("eval", SafeText, ForeignKey("evals.id"), nullable=False),
    Column("project", SafeText, ForeignKey("projects.name"), nullable=False),
    Column("name", SafeText, nullable=False),
    Column("state", SafeText, nullable=False),
    _json("data_source"),  # as it was given, the rows left out
    _json("metadata"),
    Column("model", SafeText, nullable=False),  # empty where the rows bring their answers
    _json("summary"),  # counts of what is done, kept with each row
    _json("error"),
    Column("items", Integer, nullable=False),
    Column("created_by", SafeText, nullable=False),
    Column("role", SafeText, nullable=False),  # of who made it: what it may ask
    _time("created", nullable=False),
    _time("started"),
    _time("finished"),
    Column("bytes", BigInteger, nullable=False, server_default="0"),  # likewise, its rows among it
    Index(None, "eval", "id"),
    Index(None, "state", "id"),
    Index(None, "project", "state"),
)

eval_items = Table(
    "eval_items",
    metadata,
    Column("run", SafeText, ForeignKey("eval_runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("state", SafeText, nullable=False),
    _json("item"),
    _json("given"),  # the answer that the row brings; empty where a model is asked
    _json("sample"),
    _json("results"),
    _time("done"),
    Index(None, "run", "state", "number"),
)

ended_sessions = Table(
    "ended_sessions",
    metadata,
    Column("id", SafeText, primary_key=True),  # the nonce of a cookie whose owner signed out
    _time("expires", nullable=False),
)

scores = Table(
    "scores",
    metadata,
    Column("job", SafeText, ForeignKey("jobs.id"), primary_key=True),
    Column("stage", SafeText, primary_key=True),
    Column("benchmark", SafeText, primary_key=True),
    Column("metric", SafeText, primary_key=True),
    Column("project", SafeText, ForeignKey("projects.name"), nullable=False),
    Column("value", Double, nullable=False),
    _time("created", nullable=False),
    Index(None, "project", "benchmark", "metric", "value"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", SafeText, primary_key=True),
    _time("time", nullable=False),
    Column("action", SafeText, nullable=False),
    # a token's id, `finery` or `console`; no foreign key, because the trail outlives what it names
    Column("actor", SafeText, nullable=False),
    Column("role", SafeText, nullable=False),
    Column("actor_project", SafeText, nullable=False),
    Column("address", SafeText, nullable=False),
    Column("request", SafeText, nullable=False),
    Column("kind", SafeText, nullable=False),
    Column("thing", SafeText, nullable=False),
    Column("project", SafeText),  # of the thing
    _json("details"),
    Index(None, "time"),
    Index(None, "action", "id"),
    Index(None, "actor", "id"),
    Index(None, "project", "id"),
    Index(None, "thing", "id"),
)


def now() -> float:
    """Seconds since 1970."""
    return time.time()


def job_of(row: RowMapping | Mapping[str, Any]) -> Job:
    request = JobRequest(
        recipe=row["recipe"],
        project=row["project"],
        name=row["name"],
        overrides=tuple(row["overrides"]),
        priority=row["asked_priority"],
        resources=Resources(**row["resources"]),
        depends_on=tuple(row["depends_on"]),
        deadline=row["deadline"],
        expected_seconds=row["expected_seconds"],
        max_retries=row["max_retries"],
        max_seconds=row["max_seconds"],
        ttl_seconds_after_finished=row["ttl_seconds_after_finished"],
        idempotency_key=row["idempotency_key"],
        kind=row["kind"],
        submitted_by=row["submitted_by"],
        secrets=tuple(row["secrets"]),
        openai=row["openai"],
        models=row["models"],
    )
    return Job(
        id=row["id"],
        request=request,
        state=State(row["state"]),
        created=row["created"],
        updated=row["updated"],
        priority=row["priority"],
        reason=None if row["reason"] is None else Reason(row["reason"]),
        message=row["message"],
        started=row["started"],
        finished=row["finished"],
        not_before=row["not_before"],
        retries=row["retries"],
        preemptions=row["preemptions"],
        attempt=row["attempt"],
        attempts=row["attempts"],
        attempts_before_retry=row["attempts_before_retry"],
        last_event=row["last_event"],
        progress=row["progress"],
    )


def row_of_request(identifier: str, request: JobRequest, created: float) -> dict[str, Any]:
    """The row of a job that was just submitted."""
    return {
        "id": identifier,
        "project": request.project,
        "kind": request.kind,
        "name": request.name,
        "recipe": request.recipe,
        "overrides": list(request.overrides),
        "resources": asdict(request.resources),
        "depends_on": list(request.depends_on),
        "secrets": list(request.secrets),
        "openai": dict(request.openai),
        "models": dict(request.models),
        "digest": request.digest(),
        "idempotency_key": request.idempotency_key,
        "submitted_by": request.submitted_by,
        "asked_priority": request.priority,
        "deadline": request.deadline,
        "expected_seconds": request.expected_seconds,
        "max_retries": request.max_retries,
        "max_seconds": request.max_seconds,
        "ttl_seconds_after_finished": request.ttl_seconds_after_finished,
        "state": State.QUEUED,
        "reason": None,
        "message": "",
        "priority": request.priority,
        "created": created,
        "updated": created,
        "started": None,
        "finished": None,
        "not_before": 0.0,
        "retries": 0,
        "preemptions": 0,
        "attempt": None,
        "attempts": 0,
        "attempts_before_retry": 0,
        "last_event": 1,
        "progress": {},
    }


def placement_of(parts: Sequence[Mapping[str, Any]]) -> Placement:
    return tuple(HostShare(part["host"], tuple(part["gpus"])) for part in parts)


def attempt_of(row: RowMapping) -> Attempt:
    return Attempt(
        id=row["id"],
        job=row["job"],
        number=row["number"],
        fencing=row["fencing"],
        executor=row["executor"],
        placement=placement_of(row["placement"]),
        resources=Resources(**row["resources"]),
        state=AttemptState(row["state"]),
        created=row["created"],
        handle=row["handle"],
        started=row["started"],
        ended=row["ended"],
        exit_code=row["exit_code"],
        reason=None if row["reason"] is None else Reason(row["reason"]),
        message=row["message"],
        ingested=row["ingested"],
        offset=row["offset"],
        skipped_lines=row["skipped_lines"],
    )


def lease_of(row: RowMapping) -> Lease:
    return Lease(name=row["name"], holder=row["holder"], fencing=row["fencing"], expires=row["expires"])


def event_of(row: RowMapping) -> Event:
    return Event(
        job=row["job"],
        id=row["id"],
        time=row["time"],
        event=row["event"],
        stage=row["stage"],
        step=row["step"],
        fields=row["fields"],
        attempt=row["attempt"],
    )
