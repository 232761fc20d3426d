"""From rows to values and back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import RowMapping

from service.jobs.job import Attempt, Event, Job, JobRequest, Lease
from service.jobs.resources import Part, Placement, Resources
from service.jobs.states import AttemptState, Reason, State


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
    return tuple(Part(part["host"], tuple(part["gpus"])) for part in parts)


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
