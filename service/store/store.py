"""The store: every query and short transaction of the service, on one database with the newest schema.

The schema is brought up to date by one process at a time. What metrics tell of the work is counted from the rows, each
figure in one query, so that a restart forgets nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, case, func, inspect, select, text
from sqlalchemy.exc import OperationalError

from pipelines.core.errors import FineryError
from service.jobs.states import AttemptState, Reason, State
from service.settings import Settings
from service.store import tables
from service.store.attempts import AttemptQueries, LeaseQueries
from service.store.audit import AuditQueries
from service.store.database import Database, Transaction
from service.store.disk_usage import DiskUsageQueries
from service.store.errors import Unavailable
from service.store.evals import EvalQueries
from service.store.events import EventQueries
from service.store.files import UPLOADING, FileQueries
from service.store.hosts import HostQueries
from service.store.jobs import JobQueries, QueueQueries
from service.store.models import ModelQueries
from service.store.permissions import PermissionQueries
from service.store.projects import ProjectQueries, TokenQueries
from service.store.registry import RegistryQueries
from service.store.results import ResultQueries
from service.store.tables import now

FOLDER = Path(__file__).parent / "migrations"
NEWEST = "0008"
"""The schema that this code reads and writes; the last of `migrations/versions/`."""
LOCK = 0x66696E657279
"""PostgreSQL's advisory lock: `finery` in ASCII."""


class SchemaTooNew(FineryError):
    """The database was written by a later version of this program."""

    reason = "schema_too_new"


def upgrade(database: Database, revision: str = "head") -> None:
    """Migrate up to `revision`. Does nothing, quickly, when the schema is the newest already.

    Raises SchemaTooNew for a database of a later version, Unavailable when none answers.
    """
    try:
        if revision == "head" and current(database) == NEWEST:
            return
        with alone(database) as connection:
            upgrade_within(connection, revision)
    except OperationalError as error:
        raise Unavailable(
            f"cannot open the database {database.url.render_as_string()}: {str(error.orig).strip().splitlines()[0]}"
        ) from error


def upgrade_within(connection: Connection, revision: str = "head") -> None:
    """Migrate in the transaction that `alone` opened, together with what else is done in it."""
    from alembic import command  # slow, and needed once in a database's life

    command.upgrade(_config(connection), revision)


def downgrade(database: Database, revision: str) -> None:
    """Migrate down to `revision` (`base` for nothing at all). What the older schema has no place for is lost."""
    with alone(database) as connection:
        from alembic import command

        command.downgrade(_config(connection), revision)


def current(database: Database) -> str | None:
    """The revision of the schema; None for an empty database. Raises SchemaTooNew for one that is not known here."""
    with database.engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if revision is not None and not any((FOLDER / "versions").glob(f"{revision}_*.py")):
        raise SchemaTooNew(
            f"the database has schema {revision}, this version of finery knows up to {NEWEST}; install the version "
            "that wrote it, or a later one"
        )
    return None if revision is None else str(revision)


def _config(connection: Connection) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


@contextmanager
def alone(database: Database) -> Iterator[Connection]:
    """A connection, while no other process migrates the same database."""
    if database.engine.dialect.name == "postgresql":
        with database.engine.connect() as connection, connection.begin():
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
            yield connection
        return
    place = database.url.database
    if place in (None, "", ":memory:"):
        with database.engine.begin() as connection:
            yield connection
        return
    with open(f"{place}.migrating", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with database.engine.connect().execution_options(writes=True) as connection, connection.begin():
            yield connection


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


class CountQueries(Database):
    """The part of the store that counts."""

    def counts(self) -> Counts:
        """Everything at once, in one transaction."""
        return self.read(self._counted_within)

    def _counted_within(self, transaction: Transaction) -> Counts:
        jobs, attempts, leases, files = tables.jobs, tables.attempts, tables.leases, tables.files
        moment = now()
        wait = attempts.c.created - jobs.c.created
        bucket = case(
            *((wait <= limit, number) for number, limit in enumerate(WAIT_BUCKETS)), else_=len(WAIT_BUCKETS)
        ).label("bucket")
        inner = (
            select(bucket, wait.label("wait"))
            .join_from(attempts, jobs, jobs.c.id == attempts.c.job)
            .where(attempts.c.number == 1)
            .subquery()
        )
        waits, waited = [0] * (len(WAIT_BUCKETS) + 1), 0.0
        for number, count, seconds in transaction.execute(
            select(inner.c.bucket, func.count(), func.sum(inner.c.wait)).group_by(inner.c.bucket)
        ):
            waits[int(number)] = int(count)
            waited += max(0.0, float(seconds))
        ran = func.sum(attempts.c.ended - func.coalesce(attempts.c.started, attempts.c.ended))
        ended = dict.fromkeys(OUTCOMES, (0, 0.0))
        grouped = select(attempts.c.reason, attempts.c.exit_code, func.count(), ran).where(
            attempts.c.state == AttemptState.ENDED
        )
        for reason, code, count, seconds in transaction.execute(
            grouped.group_by(attempts.c.reason, attempts.c.exit_code)
        ):
            outcome = (
                reason
                if reason in OUTCOMES
                else "other"
                if reason is not None
                else "succeeded"
                if code == 0
                else "stopped"
            )
            before = ended[outcome]
            ended[outcome] = (before[0] + int(count), before[1] + max(0.0, float(seconds or 0.0)))
        oldest = transaction.execute(select(func.min(jobs.c.created)).where(jobs.c.state == State.QUEUED)).scalar()
        expired = select(func.count()).where(leases.c.attempt.is_not(None), leases.c.expires < moment)
        return Counts(
            tuple(waits),
            waited,
            ended,
            max(0.0, moment - oldest) if oldest is not None else 0.0,
            int(transaction.execute(select(func.coalesce(func.sum(jobs.c.last_event), 0))).scalar_one()),
            int(transaction.execute(expired).scalar_one()),
            int(transaction.execute(select(func.count()).where(files.c.state == UPLOADING)).scalar_one()),
            self._bytes(transaction),
        )

    def _bytes(self, transaction: Transaction) -> int:
        if transaction.postgresql:
            return int(transaction.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
        path = str(self.url.database)
        return sum(os.path.getsize(each) for each in (path, f"{path}-wal") if os.path.exists(each))


class Store(
    JobQueries,
    AttemptQueries,
    EventQueries,
    LeaseQueries,
    ResultQueries,
    ModelQueries,
    RegistryQueries,
    PermissionQueries,
    EvalQueries,
    HostQueries,
    FileQueries,
    TokenQueries,
    ProjectQueries,
    QueueQueries,
    AuditQueries,
    CountQueries,
    DiskUsageQueries,
):
    """Jobs and all that belongs to them. Thread-safe; each call is one transaction.

    Every look-up takes a `project`: what belongs to another one is not found. None is an admin, who sees all.
    """


def open_store(settings: Settings) -> Store:
    """Bring the database's schema up to date, then open it."""
    store = Store(settings.url)
    upgrade(store)
    return store
