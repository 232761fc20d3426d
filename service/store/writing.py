"""What every change of a job does, inside a transaction: lock the row, check the table, append the event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Select, insert, select, update

from service.jobs.job import Job
from service.jobs.states import TERMINAL, Reason, State
from service.jobs.transitions import Move, after
from service.store import tables
from service.store.changes import ATTEMPTS, JOBS, QUEUE, job_topic
from service.store.database import Transaction
from service.store.errors import Conflict, Fenced, NotFound
from service.store.rows import job_of, now

WAKES_ATTEMPTS = frozenset({Move.START, Move.PREEMPT, Move.PAUSE, Move.CANCEL, Move.LOSE, Move.RESUME})
"""After these somebody has a process to start or to stop."""


def locked(query: Select[Any], transaction: Transaction) -> Select[Any]:
    """The same rows, kept from others until the commit. SQLite's writer already has the whole database."""
    return query.with_for_update(key_share=True) if transaction.postgresql else query


def locked_job(transaction: Transaction, job_id: str, project: str | None = None) -> Job:
    """The job, kept from others until the commit. Raises NotFound, also for another project's."""
    query = select(tables.jobs).where(tables.jobs.c.id == job_id)
    if project is not None:
        query = query.where(tables.jobs.c.project == project)
    row = transaction.execute(locked(query, transaction)).mappings().first()
    if row is None:
        raise NotFound("job", job_id)
    return job_of(row)


def check_fencing(transaction: Transaction, job_id: str, fencing: int, attempt_id: str = "") -> None:
    """Refuse a writer that was replaced. The job's row must be locked."""
    current = transaction.execute(select(tables.leases.c.fencing).where(tables.leases.c.name == job_id)).scalar()
    if current != fencing:
        raise Fenced(attempt_id or f"{job_id} (token {fencing})")


def append_events(transaction: Transaction, job: Job, events: Iterable[Mapping[str, Any]], attempt_id: str | None) -> int:
    """Number the events on and write them; returns the id of the last. The caller stores it as `last_event`."""
    last = job.last_event
    rows = []
    for fields in events:
        last += 1
        rows.append(
            {
                "job": job.id,
                "id": last,
                "time": fields.get("time", now()),
                "event": fields["event"],
                "stage": fields.get("stage"),
                "step": fields.get("step"),
                "attempt": attempt_id,
                "fields": {key: value for key, value in fields.items() if key not in {"id", "time", "event", "stage", "step"}},
            }
        )
    if rows:
        transaction.execute(insert(tables.events), rows)
    transaction.topics |= {job_topic(job.id), JOBS}
    return last


def apply_move(
    transaction: Transaction,
    job: Job,
    move: Move,
    *,
    reason: Reason | None = None,
    message: str = "",
    attempt_id: str | None = None,
    **fields: Any,
) -> Job:
    """Move a locked job, append its event, and return what it is now. Raises IllegalTransition."""
    state = after(job.state, move)
    moment = now()
    changes: dict[str, Any] = {"state": state, "updated": moment, **fields}
    if state is State.QUEUED and move is Move.RETRY:
        changes |= {"retries": 0, "reason": None, "message": "", "finished": None, "not_before": 0.0, "attempts_before_retry": job.attempts}
    else:
        changes |= {"reason": reason, "message": message}
    if state in TERMINAL:
        changes["finished"] = moment
    if state is State.RUNNING and job.started is None:
        changes["started"] = moment
    event: dict[str, Any] = {"event": "state", "time": moment, "state": state, "from": job.state}
    if reason is not None:
        event["reason"] = reason
    if message:
        event["message"] = message
    changes["last_event"] = append_events(transaction, job, [event], attempt_id or (job.attempt if job.active else None))
    transaction.execute(update(tables.jobs).where(tables.jobs.c.id == job.id).values(**changes))
    transaction.topics.add(QUEUE)
    if move in WAKES_ATTEMPTS:
        transaction.topics.add(ATTEMPTS)
    return job_of(transaction.execute(select(tables.jobs).where(tables.jobs.c.id == job.id)).mappings().one())


def check_expected(job: Job, expect: Iterable[State] | State | None) -> None:
    """Refuse a change that was meant for another state."""
    expected = {expect} if isinstance(expect, State) else set(expect or State)
    if job.state not in expected:
        raise Conflict(f"the job is {job.state}, not {' or '.join(sorted(expected))}")
