"""What metrics tell of the work: counted from the rows, so that a restart forgets nothing, each in one query."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import case, func, select, text

from service.jobs.states import AttemptState, Reason, State
from service.store import tables
from service.store.database import Database, Transaction
from service.store.files import UPLOADING
from service.store.rows import now

WAIT_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 86_400.0)
"""Seconds from a job's submission to its first attempt, that the histogram tells apart."""
OUTCOMES = ("succeeded", "stopped", *(str(reason) for reason in Reason), "other")
"""How an attempt ended: well, stopped for later, or for a reason."""


@dataclass(frozen=True)
class Counts:
    """The state of the work at one moment."""

    waits: tuple[int, ...]
    """Jobs by the bucket of their wait; the last is beyond all of them."""
    waited: float
    """Seconds, of all of these together."""
    ended: Mapping[str, tuple[int, float]]
    """Outcome -> (attempts, the seconds that they ran)."""
    oldest_queued: float
    """Seconds that the oldest waiting job has waited; 0 when none waits."""
    events: int
    leases_expired: int
    """Attempts whose server no longer renews its lease, and that nobody has taken over yet."""
    uploads: int
    """On their way."""
    database_bytes: int


class Counting(Database):
    """The part of the store that counts."""

    def counts(self) -> Counts:
        """Everything at once, in one transaction."""
        return self.read(self._counted_within)

    def _counted_within(self, transaction: Transaction) -> Counts:
        jobs, attempts, leases, files = tables.jobs, tables.attempts, tables.leases, tables.files
        moment = now()
        wait = attempts.c.created - jobs.c.created
        bucket = case(*((wait <= limit, number) for number, limit in enumerate(WAIT_BUCKETS)), else_=len(WAIT_BUCKETS)).label("bucket")
        inner = select(bucket, wait.label("wait")).join_from(attempts, jobs, jobs.c.id == attempts.c.job).where(attempts.c.number == 1).subquery()
        waits, waited = [0] * (len(WAIT_BUCKETS) + 1), 0.0
        for number, count, seconds in transaction.execute(select(inner.c.bucket, func.count(), func.sum(inner.c.wait)).group_by(inner.c.bucket)):
            waits[int(number)] = int(count)
            waited += max(0.0, float(seconds))
        ran = func.sum(attempts.c.ended - func.coalesce(attempts.c.started, attempts.c.ended))
        ended = dict.fromkeys(OUTCOMES, (0, 0.0))
        grouped = select(attempts.c.reason, attempts.c.exit_code, func.count(), ran).where(attempts.c.state == AttemptState.ENDED)
        for reason, code, count, seconds in transaction.execute(grouped.group_by(attempts.c.reason, attempts.c.exit_code)):
            outcome = reason if reason in OUTCOMES else "other" if reason is not None else "succeeded" if code == 0 else "stopped"
            before = ended[outcome]
            ended[outcome] = (before[0] + int(count), before[1] + max(0.0, float(seconds or 0.0)))
        oldest = transaction.execute(select(func.min(jobs.c.created)).where(jobs.c.state == State.QUEUED)).scalar()
        expired = select(func.count()).where(leases.c.attempt.is_not(None), leases.c.expires < moment)
        return Counts(
            tuple(waits), waited, ended, max(0.0, moment - oldest) if oldest is not None else 0.0,
            int(transaction.execute(select(func.coalesce(func.sum(jobs.c.last_event), 0))).scalar_one()),
            int(transaction.execute(expired).scalar_one()),
            int(transaction.execute(select(func.count()).where(files.c.state == UPLOADING)).scalar_one()),
            self._bytes(transaction),
        )  # fmt: skip

    def _bytes(self, transaction: Transaction) -> int:
        if transaction.postgresql:
            return int(transaction.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
        path = str(self.url.database)
        return sum(os.path.getsize(each) for each in (path, f"{path}-wal") if os.path.exists(each))
