"""Jobs in the store: submit, look up, list by pages, move, and those that wait for the scheduler.

Every change of a job goes through `apply_move`, inside a transaction: lock the row, check the table of transitions,
append the event. The scheduler reads every job that waits or holds resources, without its recipe.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import RowMapping, Select, Text, cast, delete, func, insert, select, update

from service.jobs.job import Job, JobRequest, Placement, Resources, new_id
from service.jobs.states import ACTIVE, TERMINAL, AttemptState, Move, Reason, State, after
from service.store import tables
from service.store.audit import Action, note
from service.store.changes import ATTEMPTS, JOBS, QUEUE, job_topic
from service.store.database import Database, Transaction
from service.store.disk_usage import forget_usage, refuse_full
from service.store.errors import Conflict, Fenced, NotFound, QuotaExceeded
from service.store.projects import known_project
from service.store.tables import job_of, now, placement_of, row_of_request

WAKES_ATTEMPTS = frozenset({Move.START, Move.PREEMPT, Move.PAUSE, Move.CANCEL, Move.LOSE, Move.RESUME})
"""After these somebody has a process to start or to stop."""


def locked(query: Select[object], transaction: Transaction) -> Select[Any]:
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


def append_events(
    transaction: Transaction, job: Job, events: Iterable[Mapping[str, object]], attempt_id: str | None
) -> int:
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
                "fields": {
                    key: value for key, value in fields.items() if key not in {"id", "time", "event", "stage", "step"}
                },
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
        changes |= {
            "retries": 0,
            "reason": None,
            "message": "",
            "finished": None,
            "not_before": 0.0,
            "attempts_before_retry": job.attempts,
        }
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
    changes["last_event"] = append_events(
        transaction, job, [event], attempt_id or (job.attempt if job.active else None)
    )
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


MOVABLE = frozenset({"not_before", "retries", "preemptions"})
"""What a caller of `move` may set beside the state."""
COUNT_SECONDS = 5.0
"""Far below the limit, waiting jobs are counted this often: counting ten thousand costs more than taking one."""
FOR_EVER = 1e15
"""Seconds."""
ENDINGS = frozenset({Move.SUCCEED, Move.FAIL, Move.STOPPED})
"""What the end of an attempt does to its job."""
ACTIONS: dict[Move, Action] = {
    Move.PAUSE: "job.pause",
    Move.RESUME: "job.resume",
    Move.CANCEL: "job.cancel",
    Move.RETRY: "job.retry",
}
"""What people ask for; the other moves are the service's own, and stand in the job's events."""


class JobQueries(Database):
    """The part of the store that holds jobs."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._counted: dict[str, tuple[int, float]] = {}
        """Project -> (jobs that wait, when they were counted)."""

    def submit(self, request: JobRequest, *, max_queued: int | None = None) -> tuple[Job, bool]:
        """Take a job, once for each idempotency key of a project. Returns it, and whether it is new.

        Raises Conflict when the key came with another request, NotFound when it depends on a job that is not there,
        QuotaExceeded when `max_queued` (or the project's own limit, which comes first) is reached, DiskQuotaExceeded
        when the project keeps as much on the disk as it may.
        """
        identifier = new_id("job")
        tried = False

        def work(transaction: Transaction) -> tuple[Job, bool]:
            nonlocal tried
            project = known_project(transaction, request.project, lock=request.idempotency_key is not None)
            before = (
                self._same(transaction, identifier, request) if tried or request.idempotency_key is not None else None
            )
            tried = True
            if before is not None:
                return before
            refuse_full(transaction, project)
            return self._take(
                transaction, identifier, request, project.max_queued if project.max_queued is not None else max_queued
            )

        return self.write(work)

    @staticmethod
    def _same(transaction: Transaction, identifier: str, request: JobRequest) -> tuple[Job, bool] | None:
        """What an earlier try of this very call wrote, or the job that this key made before."""
        jobs = tables.jobs
        same = jobs.c.id == identifier
        if request.idempotency_key is not None:
            same |= (jobs.c.project == request.project) & (jobs.c.idempotency_key == request.idempotency_key)
        before = transaction.execute(select(jobs).where(same)).mappings().first()
        if before is None:
            return None
        if before["digest"] != request.digest():
            raise Conflict(
                f"the idempotency key '{request.idempotency_key}' was sent before with another request, which became "
                f"{before['id']}"
            )
        return job_of(before), before["id"] == identifier

    def _take(
        self, transaction: Transaction, identifier: str, request: JobRequest, limit: int | None
    ) -> tuple[Job, bool]:
        jobs = tables.jobs
        if limit is not None and self._waiting(transaction, request.project, limit) >= limit:
            raise QuotaExceeded(
                f"project '{request.project}' has {limit} jobs waiting, which is its limit; wait, cancel some, or "
                "ask an admin"
            )
        for needed in request.depends_on:
            query = select(jobs.c.id).where(jobs.c.id == needed, jobs.c.project == request.project)
            existing = transaction.execute(locked(query, transaction)).first()  # it is not deleted meanwhile
            if existing is None:
                raise NotFound("job", needed)
        row = row_of_request(identifier, request, now())
        transaction.execute(insert(jobs).values(**row))
        event = {
            "job": identifier,
            "id": 1,
            "time": row["created"],
            "event": "state",
            "fields": {"state": State.QUEUED},
        }
        transaction.execute(insert(tables.events).values(**event))
        note(
            transaction,
            "job.submit",
            "job",
            identifier,
            request.project,
            name=request.name,
            via=request.kind,
            secrets=request.secrets or None,
        )
        transaction.topics |= {JOBS, QUEUE, job_topic(identifier)}
        return job_of(row), True

    def _waiting(self, transaction: Transaction, project: str, limit: int) -> int:
        """How many jobs of the project wait: counted, unless a moment ago there were far fewer than the limit."""
        count, counted = self._counted.get(project, (limit, 0.0))
        if count < limit * 4 // 5 and now() - counted < COUNT_SECONDS:
            self._counted[project] = (count + 1, counted)
            return count
        jobs = tables.jobs
        query = select(func.count()).where(jobs.c.project == project, jobs.c.state == State.QUEUED)
        count = int(transaction.execute(query).scalar_one())
        self._counted[project] = (count, now())
        return count

    def job(self, job_id: str, project: str | None = None) -> Job:
        """One job. Raises NotFound, also when it belongs to another project."""
        query = of_project(select(tables.jobs).where(tables.jobs.c.id == job_id), project)
        row = self.read(lambda transaction: transaction.execute(query).mappings().first())
        if row is None:
            raise NotFound("job", job_id)
        return job_of(row)

    def jobs(
        self,
        project: str | None = None,
        *,
        states: Collection[State] | None = None,
        kind: str | None = None,
        name: str | None = None,
        search: str | None = None,
        after: str | None = None,
        limit: int = 50,
        newest_first: bool = True,
    ) -> list[Job]:
        """A page of jobs, newest first. The next page is the one `after` the last id of this one."""
        jobs = tables.jobs
        query = of_project(select(jobs), project)
        if states is not None:
            query = query.where(jobs.c.state.in_([str(state) for state in states]))
        if kind is not None:
            query = query.where(jobs.c.kind == kind)
        if name is not None:
            query = query.where(jobs.c.name == name)
        if search:
            query = query.where(func.lower(jobs.c.name).contains(search.lower(), autoescape=True))
        if after is not None:
            query = query.where(jobs.c.id < after if newest_first else jobs.c.id > after)
        query = query.order_by(jobs.c.id.desc() if newest_first else jobs.c.id).limit(limit)
        return self.read(lambda transaction: [job_of(row) for row in transaction.execute(query).mappings()])

    def count(self, project: str | None = None) -> dict[State, int]:
        """How many jobs are in each state; every state is there."""
        query = of_project(select(tables.jobs.c.state, func.count()).group_by(tables.jobs.c.state), project)
        counts = self.read(
            lambda transaction: {State(state): int(count) for state, count in transaction.execute(query)}
        )
        return {state: counts.get(state, 0) for state in State}

    def move(
        self,
        job_id: str,
        move: Move,
        *,
        project: str | None = None,
        expect: Collection[State] | State | None = None,
        fencing: int | None = None,
        reason: Reason | None = None,
        message: str = "",
        **fields: Any,
    ) -> Job:
        """Change the state as the table of transitions says, and append the event, in one transaction.

        START and the end of an attempt belong to `start` and `end_attempt`, which also take and free the resources.
        Raises IllegalTransition, NotFound, Conflict (not in an `expect`ed state) or Fenced (an outdated token).
        """
        unknown = set(fields) - MOVABLE
        if unknown:
            raise TypeError(f"move cannot set {', '.join(sorted(unknown))}")

        def work(transaction: Transaction) -> Job:
            job = locked_job(transaction, job_id, project)
            if fencing is not None:
                check_fencing(transaction, job_id, fencing)
            check_expected(job, expect)
            if move is Move.START or (job.active and move in ENDINGS):
                raise ValueError(f"'{move}' also takes or frees resources: use start or end_attempt")
            moved = apply_move(transaction, job, move, reason=reason, message=message, **fields)
            if move in ACTIONS:
                note(transaction, ACTIONS[move], "job", job_id, job.project, was=str(job.state))
            return moved

        return self.write(work, repeatable=False)

    def set_priority(self, job_id: str, priority: int, project: str | None = None) -> Job:
        """Change the priority of a job that has not ended. Raises Conflict when it has."""

        def work(transaction: Transaction) -> Job:
            job = locked_job(transaction, job_id, project)
            if job.over:
                raise Conflict(f"the job is {job.state}; its priority no longer matters")
            last = append_events(
                transaction, job, [{"event": "priority", "priority": priority, "from": job.priority}], None
            )
            transaction.topics.add(QUEUE)
            note(transaction, "job.priority", "job", job_id, job.project, priority=priority, was=job.priority)
            return self._changed_job(transaction, job_id, priority=priority, last_event=last)

        return self.write(work)

    def delete_job(self, job_id: str, project: str | None = None) -> Job:
        """Forget a job that has ended, with its attempts, events and results; models that it published stay.

        Its folder is the caller's to remove. Raises NotFound, or Conflict while it lives or another job needs it.
        """

        def work(transaction: Transaction) -> Job:
            jobs = tables.jobs
            job = locked_job(transaction, job_id, project)
            if not job.over:
                raise Conflict(f"the job is {job.state}; cancel it first, or wait until it has ended")
            living = jobs.c.state.not_in([str(state) for state in TERMINAL])
            needs = select(jobs.c.id).where(
                living, jobs.c.project == job.project, cast(jobs.c.depends_on, Text).contains(f'"{job_id}"')
            )
            user = transaction.execute(needs.limit(1)).scalar()
            if user is not None:
                raise Conflict(f"job '{user}' needs the job; cancel that one first, or wait until it has ended")
            for table in (tables.events, tables.stage_results, tables.scores, tables.attempts):
                transaction.execute(delete(table).where(table.c.job == job_id))
            transaction.execute(
                delete(tables.leases).where(tables.leases.c.name.in_([job_id, f"openai-results:{job_id}"]))
            )
            forget_usage(transaction, "jobs", job_id)
            transaction.execute(delete(jobs).where(jobs.c.id == job_id))
            note(transaction, "job.delete", "job", job_id, job.project, name=job.name)
            transaction.topics |= {JOBS, QUEUE, job_topic(job_id)}
            return job

        return self.write(work, repeatable=False)

    def outlived(self, moment: float, seconds: float | None, limit: int = 100) -> list[str]:
        """Jobs whose time to be kept is over, the earliest ended first; `seconds` is that of jobs that name none,
        None for ever."""
        jobs = tables.jobs
        lifetime = func.coalesce(jobs.c.ttl_seconds_after_finished, FOR_EVER if seconds is None else seconds)
        query = (
            select(jobs.c.id)
            .where(jobs.c.finished.is_not(None), jobs.c.finished + lifetime < moment)
            .order_by(jobs.c.finished)
            .limit(limit)
        )
        return self.read(lambda transaction: list(transaction.execute(query).scalars()))

    def update_openai(self, job_id: str, changes: Mapping[str, object], project: str | None = None) -> Job:
        """Merge what the OpenAI surface keeps beside a job."""

        def work(transaction: Transaction) -> Job:
            job = locked_job(transaction, job_id, project)
            return self._changed_job(transaction, job_id, openai={**job.request.openai, **changes})

        return self.write(work)

    @staticmethod
    def _changed_job(transaction: Transaction, job_id: str, **values: Any) -> Job:
        jobs = tables.jobs
        transaction.execute(update(jobs).where(jobs.c.id == job_id).values(updated=now(), **values))
        transaction.topics |= {JOBS, job_topic(job_id)}
        return job_of(transaction.execute(select(jobs).where(jobs.c.id == job_id)).mappings().one())


def of_project(query: Select[object], project: str | None) -> Select[Any]:
    """Only the project's jobs; None is an admin, who sees all."""
    return query if project is None else query.where(tables.jobs.c.project == project)


jobs = tables.jobs
COLUMNS = (
    "id",
    "project",
    "state",
    "priority",
    "resources",
    "depends_on",
    "deadline",
    "expected_seconds",
    "created",
    "updated",
    "not_before",
    "attempt",
)


@dataclass(frozen=True)
class Standing:
    """A job as the scheduler sees it."""

    id: str
    project: str
    state: State
    priority: int
    resources: Resources
    depends_on: tuple[str, ...]
    deadline: float | None
    expected_seconds: float | None
    created: float
    updated: float
    not_before: float
    attempt: str | None
    placement: Placement = ()
    """Where its attempt runs, when it holds resources."""
    began: float = 0.0
    """When that attempt was placed."""


class QueueQueries(Database):
    """The part of the store that the scheduler reads."""

    def standing(self) -> list[Standing]:
        """All jobs that wait or hold resources, oldest first."""
        states = [str(state) for state in (State.QUEUED, *ACTIVE)]
        query = select(*(jobs.c[name] for name in COLUMNS)).where(jobs.c.state.in_(states)).order_by(jobs.c.id)
        return self.read(lambda transaction: self._standing(transaction, transaction.execute(query).mappings().all()))

    def changed_since(self, moment: float) -> list[Standing]:
        """All jobs, ended ones too, that changed at or after this time."""
        query = select(*(jobs.c[name] for name in COLUMNS)).where(jobs.c.updated >= moment).order_by(jobs.c.id)
        return self.read(lambda transaction: self._standing(transaction, transaction.execute(query).mappings().all()))

    def states_of(self, identifiers: Collection[str]) -> dict[str, State]:
        """The states of these jobs."""
        names = sorted(identifiers)
        states: dict[str, State] = {}
        for begin in range(0, len(names), 500):
            query = select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(names[begin : begin + 500]))
            rows = self.read(lambda transaction, query=query: transaction.execute(query).all())  # type: ignore[misc]
            states |= {row[0]: State(row[1]) for row in rows}
        return states

    @staticmethod
    def _standing(transaction: Transaction, rows: Collection[RowMapping]) -> list[Standing]:
        attempts = tables.attempts
        placements: dict[str, tuple[Placement, float]] = {}
        if any(row["state"] in ACTIVE for row in rows):
            query = select(attempts.c.job, attempts.c.placement, attempts.c.created).where(
                attempts.c.state != AttemptState.ENDED
            )
            for job, placement, created in transaction.execute(query):
                placements[job] = (placement_of(placement), created)
        return [_standing(row, *placements.get(row["id"], ((), 0.0))) for row in rows]


def _standing(row: RowMapping, placement: Placement, began: float) -> Standing:
    state = State(row["state"])
    held = state in ACTIVE
    return Standing(
        **{name: row[name] for name in COLUMNS if name not in {"state", "resources", "depends_on"}},
        state=state,
        resources=Resources(**row["resources"]),
        depends_on=tuple(row["depends_on"]),
        placement=placement if held else (),
        began=began if held else 0.0,
    )
