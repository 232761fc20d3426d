"""Attempts in the store: begin with resources, a lease and a fencing token; end once, and free them.

A lease says who may act for what until when. A process that was paused for a minute may wake up and write as if nothing
had happened. Each holder therefore gets a number higher than every one before, writes it with every change, and is
refused when a later number was given (Kleppmann 2016, "How to do distributed locking",
martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import RowMapping, insert, select, update

from service.jobs.job import Attempt, Job, Lease, Placement, new_id
from service.jobs.states import STOPPING, AttemptState, Ending, Move, Reason, State
from service.store import tables
from service.store.changes import ATTEMPTS, JOBS, job_topic
from service.store.database import Database, Transaction
from service.store.errors import Conflict, Fenced, NotFound
from service.store.jobs import append_events, apply_move, check_fencing, locked, locked_job, of_project
from service.store.tables import attempt_of, job_of, lease_of, now

leases = tables.leases


def take(transaction: Transaction, name: str, holder: str, expires: float, attempt: str | None = None) -> int:
    """Give the lease to `holder` under the next fencing token, whoever had it; returns the token."""
    row = transaction.execute(locked(select(leases.c.fencing).where(leases.c.name == name), transaction)).first()
    if row is None:
        transaction.execute(
            insert(leases).values(name=name, holder=holder, fencing=1, expires=expires, attempt=attempt)
        )
        return 1
    token = int(row.fencing) + 1
    values = {"holder": holder, "fencing": token, "expires": expires, "attempt": attempt}
    transaction.execute(update(leases).where(leases.c.name == name).values(**values))
    return token


def drop(transaction: Transaction, name: str) -> None:
    """End the lease; the row keeps its token."""
    transaction.execute(update(leases).where(leases.c.name == name).values(holder="", expires=0.0, attempt=None))


def check_lease(transaction: Transaction, lease: Lease) -> None:
    """Refuse a holder that was replaced. Raises Conflict."""
    query = select(leases.c.fencing, leases.c.holder).where(leases.c.name == lease.name)
    row = transaction.execute(locked(query, transaction)).first()
    if row is None or (row.fencing, row.holder) != (lease.fencing, lease.holder):
        raise Conflict(f"the lease of '{lease.name}' went to another holder")


class LeaseQueries(Database):
    """The part of the store that holds leases."""

    def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        """The lease, when nobody else has one that has not expired; a holder that has it gets it again under a new
        token."""

        def work(transaction: Transaction) -> Lease | None:
            moment = now()
            row = (
                transaction.execute(locked(select(leases).where(leases.c.name == name), transaction)).mappings().first()
            )
            if row is not None and row["expires"] > moment and row["holder"] != holder:
                return None
            token = take(transaction, name, holder, moment + seconds)
            return Lease(name, holder, token, moment + seconds)

        return self.write(work)

    def renew_lease(self, lease: Lease, seconds: float) -> Lease:
        """Keep a lease. Raises Conflict when it went to another holder."""

        def work(transaction: Transaction) -> Lease:
            check_lease(transaction, lease)
            expires = now() + seconds
            transaction.execute(update(leases).where(leases.c.name == lease.name).values(expires=expires))
            return Lease(lease.name, lease.holder, lease.fencing, expires)

        return self.write(work)

    def renew(self, holder: str, seconds: float) -> int:
        """Keep every lease of this holder; returns how many."""
        query = update(leases).where(leases.c.holder == holder).values(expires=now() + seconds)
        return self.write(lambda transaction: int(transaction.execute(query).rowcount))

    def release(self, lease: Lease) -> None:
        """Give a lease back; nothing happens when another holder has it."""

        def work(transaction: Transaction) -> None:
            mine = (leases.c.name == lease.name) & (leases.c.fencing == lease.fencing)
            transaction.execute(update(leases).where(mine).values(holder="", expires=0.0))

        self.write(work)

    def lease(self, name: str) -> Lease | None:
        """Who has, or had, this lease."""
        query = select(leases).where(leases.c.name == name)
        row = self.read(lambda transaction: transaction.execute(query).mappings().first())
        return None if row is None else lease_of(row)


attempts = tables.attempts
slots = tables.gpu_slots


def attempt_row(transaction: Transaction, attempt_id: str) -> RowMapping:
    """One attempt. Raises NotFound."""
    row = transaction.execute(select(attempts).where(attempts.c.id == attempt_id)).mappings().first()
    if row is None:
        raise NotFound("attempt", attempt_id)
    return row


def writer(transaction: Transaction, attempt_id: str, fencing: int) -> tuple[Job, RowMapping]:
    """The locked job and the attempt on whose behalf something is written. Raises Fenced when it was replaced or
    has ended."""
    job = locked_job(transaction, attempt_row(transaction, attempt_id)["job"])
    row = attempt_row(transaction, attempt_id)  # again: it may have ended while the lock was awaited
    if row["state"] == AttemptState.ENDED or job.attempt != attempt_id:
        raise Fenced(attempt_id)
    check_fencing(transaction, job.id, fencing, attempt_id)
    return job, row


class AttemptQueries(Database):
    """The part of the store that holds attempts."""

    def start(
        self,
        job_id: str,
        placement: Placement,
        *,
        executor: str,
        holder: str,
        lease_seconds: float,
        scheduler: Lease | None = None,
    ) -> Attempt:
        """Give a queued job its place: state, attempt, fencing token, lease and GPUs in one transaction.

        Raises IllegalTransition when it is no longer queued, Conflict when a GPU is taken or the scheduler was
        replaced.
        """
        identifier = new_id("attempt")

        def work(transaction: Transaction) -> Attempt:
            if scheduler is not None:
                check_lease(transaction, scheduler)
            job = locked_job(transaction, job_id)
            if job.attempt == identifier:  # this very call was written before the connection broke
                return attempt_of(attempt_row(transaction, identifier))
            self._take_slots(transaction, placement, identifier)
            before = transaction.execute(
                select(attempts.c.ingested, attempts.c.offset)
                .where(attempts.c.job == job_id)
                .order_by(attempts.c.number.desc())
                .limit(1)
            ).first()
            moment = now()
            row = {
                "id": identifier,
                "job": job_id,
                "number": job.attempts + 1,
                "fencing": take(transaction, job_id, holder, moment + lease_seconds, identifier),
                "executor": executor,
                "placement": [asdict(part) for part in placement],
                "resources": asdict(job.request.resources),
                "state": AttemptState.ASSIGNED,
                "handle": {},
                "created": moment,
                "message": "",
                "ingested": before.ingested if before else 0,
                "offset": before.offset if before else 0,
            }
            transaction.execute(insert(attempts).values(**row))
            apply_move(
                transaction,
                job,
                Move.START,
                attempt_id=identifier,
                attempt=identifier,
                attempts=job.attempts + 1,
                not_before=0.0,
            )
            return attempt_of(attempt_row(transaction, identifier))

        return self.write(work)

    @staticmethod
    def _take_slots(transaction: Transaction, placement: Placement, attempt_id: str) -> None:
        for part in placement:
            if not part.gpus:
                continue
            free = (slots.c.host == part.host) & slots.c.number.in_(part.gpus) & slots.c.attempt.is_(None)
            taken = transaction.execute(update(slots).where(free).values(attempt=attempt_id)).rowcount
            if taken != len(part.gpus):
                raise Conflict(
                    f"host '{part.host}' has no longer all of its GPUs {', '.join(map(str, part.gpus))} free"
                )

    def attempt(self, attempt_id: str) -> Attempt:
        """One attempt. Raises NotFound."""
        return self.read(lambda transaction: attempt_of(attempt_row(transaction, attempt_id)))

    def attempts(self, job_id: str, project: str | None = None) -> list[Attempt]:
        """All attempts at a job, oldest first. Raises NotFound for an unknown or foreign job."""

        def work(transaction: Transaction) -> list[Attempt]:
            if (
                transaction.execute(
                    of_project(select(tables.jobs.c.id).where(tables.jobs.c.id == job_id), project)
                ).first()
                is None
            ):
                raise NotFound("job", job_id)
            query = select(attempts).where(attempts.c.job == job_id).order_by(attempts.c.number)
            return [attempt_of(row) for row in transaction.execute(query).mappings()]

        return self.read(work)

    def live_attempts(self, holder: str | None = None) -> list[tuple[Attempt, Job]]:
        """Every attempt that has not ended, with its job, oldest first; only those whose lease `holder` has, when
        given."""
        query = select(attempts).where(attempts.c.state != AttemptState.ENDED).order_by(attempts.c.id)
        if holder is not None:
            query = query.where(
                attempts.c.id.in_(select(tables.leases.c.attempt).where(tables.leases.c.holder == holder))
            )
        return self.read(
            lambda transaction: self._with_jobs(
                transaction, [attempt_of(row) for row in transaction.execute(query).mappings()]
            )
        )

    @staticmethod
    def _with_jobs(transaction: Transaction, attempts: list[Attempt]) -> list[tuple[Attempt, Job]]:
        jobs: dict[str, Job] = {}
        names = [attempt.job for attempt in attempts]
        for begin in range(0, len(names), 500):
            query = select(tables.jobs).where(tables.jobs.c.id.in_(names[begin : begin + 500]))
            jobs |= {row["id"]: job_of(row) for row in transaction.execute(query).mappings()}
        return [(attempt, jobs[attempt.job]) for attempt in attempts]

    def claim_expired(
        self, holder: str, lease_seconds: float, *, hosts: Collection[str] | None = None
    ) -> list[tuple[Attempt, Job]]:
        """Take over the live attempts whose holder no longer renews: same fencing token, so that the process may go on.

        With `hosts`, only attempts that lie on these hosts entirely. Several servers may ask at once: each gets others.
        """

        def work(transaction: Transaction) -> list[tuple[Attempt, Job]]:
            leases = tables.leases
            moment = now()
            query = (
                select(leases).where(leases.c.attempt.is_not(None), leases.c.expires < moment).order_by(leases.c.name)
            )
            if transaction.postgresql:
                query = query.with_for_update(skip_locked=True)
            claimed = []
            for lease in transaction.execute(query).mappings().all():
                attempt = attempt_of(attempt_row(transaction, lease["attempt"]))
                if hosts is not None and not {part.host for part in attempt.placement} <= set(hosts):
                    continue
                values = {"holder": holder, "expires": moment + lease_seconds}
                transaction.execute(update(leases).where(leases.c.name == lease["name"]).values(**values))
                claimed.append(attempt)
            if claimed:
                transaction.topics.add(ATTEMPTS)
            return self._with_jobs(transaction, claimed)

        return self.write(work)

    def adopt(self, holder: str, lease_seconds: float, *, hosts: Collection[str]) -> list[tuple[Attempt, Job]]:
        """Take over every live attempt on these hosts, expired or not: what the only server of a host does when it
        starts."""

        def work(transaction: Transaction) -> list[tuple[Attempt, Job]]:
            query = select(attempts).where(attempts.c.state != AttemptState.ENDED).order_by(attempts.c.id)
            live = [attempt_of(row) for row in transaction.execute(query).mappings()]
            mine = [attempt for attempt in live if {part.host for part in attempt.placement} <= set(hosts)]
            for attempt in mine:
                values = {"holder": holder, "expires": now() + lease_seconds}
                transaction.execute(update(tables.leases).where(tables.leases.c.name == attempt.job).values(**values))
            return self._with_jobs(transaction, mine)

        return self.write(work)

    def fence(self, attempt_id: str, holder: str | None = None, message: str = "") -> int:
        """Give the job's lease a new token, so that this attempt can write nothing any more; returns the token.

        A starting or running job becomes recovering. Its place stays taken until `end_attempt`, called with the new
        token once the process is proven dead. Raises Fenced when the attempt has ended.
        """

        def work(transaction: Transaction) -> int:
            job = locked_job(transaction, attempt_row(transaction, attempt_id)["job"])
            row = attempt_row(transaction, attempt_id)
            if row["state"] == AttemptState.ENDED or job.attempt != attempt_id:
                raise Fenced(attempt_id)
            lease = (
                transaction.execute(locked(select(tables.leases).where(tables.leases.c.name == job.id), transaction))
                .mappings()
                .one()
            )
            token = take(
                transaction, job.id, holder if holder is not None else lease["holder"], lease["expires"], attempt_id
            )
            transaction.execute(update(attempts).where(attempts.c.id == attempt_id).values(fencing=token))
            if job.state not in STOPPING:
                apply_move(transaction, job, Move.LOSE, message=message)
            return token

        return self.write(work)

    def attempt_started(self, attempt_id: str, fencing: int, handle: Mapping[str, object]) -> Attempt:
        """Keep what the executor needs to find the process again. May be called again with another handle."""

        def work(transaction: Transaction) -> Attempt:
            _, row = writer(transaction, attempt_id, fencing)
            values = {"state": AttemptState.STARTED, "handle": dict(handle), "started": row["started"] or now()}
            transaction.execute(update(attempts).where(attempts.c.id == attempt_id).values(**values))
            return attempt_of(attempt_row(transaction, attempt_id))

        return self.write(work)

    def stop_attempt(self, attempt_id: str, fencing: int, reason: Reason, message: str) -> Attempt:
        """Note why the service stops an attempt, which has not ended yet. The first reason stands. Raises Fenced."""

        def work(transaction: Transaction) -> Attempt:
            job, row = writer(transaction, attempt_id, fencing)
            if row["reason"] is None:
                transaction.execute(
                    update(attempts).where(attempts.c.id == attempt_id).values(reason=reason, message=message)
                )
                last = append_events(transaction, job, [{"event": "warning", "message": message}], attempt_id)
                transaction.execute(
                    update(tables.jobs).where(tables.jobs.c.id == job.id).values(last_event=last, updated=now())
                )
            return attempt_of(attempt_row(transaction, attempt_id))

        return self.write(work)

    def end_attempt(self, attempt_id: str, fencing: int, ending: Ending) -> Job:
        """The process is proven to have ended: free its place and move the job. A second call changes nothing.

        Raises Fenced when the token is outdated, IllegalTransition when the ending does not fit the job's state.
        """

        def work(transaction: Transaction) -> Job:
            job = locked_job(transaction, attempt_row(transaction, attempt_id)["job"])
            row = attempt_row(transaction, attempt_id)
            if row["state"] == AttemptState.ENDED and row["fencing"] == fencing:
                return job
            check_fencing(transaction, job.id, fencing, attempt_id)
            values = {
                "state": AttemptState.ENDED,
                "ended": now(),
                "exit_code": ending.exit_code,
                "reason": ending.reason,
                "message": ending.message,
            }
            transaction.execute(update(attempts).where(attempts.c.id == attempt_id).values(**values))
            transaction.execute(update(slots).where(slots.c.attempt == attempt_id).values(attempt=None))
            drop(transaction, job.id)
            transaction.topics |= {JOBS, ATTEMPTS, job_topic(job.id)}
            fields: dict[str, Any] = {
                "retries": job.retries + ending.counts,
                "preemptions": job.preemptions + ending.preempted,
            }
            if job.state not in {State.PAUSING, State.CANCELLING}:
                fields["not_before"] = ending.not_before
            return apply_move(
                transaction,
                job,
                ending.move,
                reason=ending.reason,
                message=ending.message,
                attempt_id=attempt_id,
                **fields,
            )

        return self.write(work)
