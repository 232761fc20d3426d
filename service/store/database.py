"""One database, SQLite or PostgreSQL, as short transactions that are tried again when it was busy or away."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection

from service.store.changes import Changes, tell_others, watch_for
from service.store.errors import NoSpace, Unavailable

Result = TypeVar("Result")

BUSY_SECONDS = 10.0
"""How long a transaction is tried again while the database is away or another one is in its way."""
CLASH_CODES = {"40001", "40P01", "55P03"}
"""PostgreSQL: serialization failure, deadlock, lock not available (appendix A of its manual)."""
AWAY_CODES = {"57P01", "57P02", "57P03", "53300"}
"""PostgreSQL: shut down by the administrator, after a crash, still starting; too many connections."""


def plain_json(value: object) -> str:
    """JSON as every database takes it: what is no finite number becomes text."""
    try:
        return json.dumps(value, allow_nan=False, default=str)
    except ValueError:
        return json.dumps(_finite(value), default=str)


def _finite(value: object) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "postgresql":
        return create_engine(
            url,
            pool_size=10,
            max_overflow=20,
            pool_pre_ping=True,
            json_serializer=plain_json,
            connect_args={"connect_timeout": 5},
        )
    if url.database not in (None, "", ":memory:"):
        Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        url,
        pool_size=10,
        max_overflow=30,
        json_serializer=plain_json,
        connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """Write-ahead log, every commit on the disk before it counts, foreign keys on, transactions begun by us."""
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "cache_size=-16000"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes its lock at once: an upgrade in the middle would fail instead of waiting
    (sqlite.org/lang_transaction.html)."""
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class Transaction:
    """An open transaction, and what is to be told when it is written."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.topics: set[str] = set()
        self.postgresql = connection.dialect.name == "postgresql"


class Database:
    """Base of the store: an engine, transactions, and news of changes."""

    def __init__(self, url: str) -> None:
        self.url = make_url(url)
        self.engine = _engine(self.url)
        self.changes = Changes(watch_for(self.url))
        self._writing = threading.Lock()
        """SQLite has one writer: threads queue here, in order, instead of polling its lock with sleeps between."""
        self._writable = (-math.inf, True)
        """When `writable` last wrote, and whether it could."""

    def read(self, work: Callable[[Transaction], Result]) -> Result:
        """Run `work` in a transaction that only reads."""
        return self._tried(lambda: self._once(work, writes=False), repeatable=True)

    def write(self, work: Callable[[Transaction], Result], *, repeatable: bool = True) -> Result:
        """Run `work` in a transaction, then wake who waits for the topics that it named.

        `work` may run several times. When the connection breaks while the commit is under way nobody knows whether it
        was written: work that is `repeatable` (a second time changes nothing) runs again, any other raises Unavailable.
        """
        return self._tried(lambda: self._write_once(work), repeatable)

    def _write_once(self, work: Callable[[Transaction], Result]) -> Result:
        if self.engine.dialect.name == "sqlite":
            with self._writing:
                return self._once(work, writes=True)
        return self._once(work, writes=True)

    def _once(self, work: Callable[[Transaction], Result], writes: bool) -> Result:
        with self.engine.connect().execution_options(writes=writes) as connection, connection.begin() as begun:
            transaction = Transaction(connection)
            result = work(transaction)
            if not writes:
                return result
            tell_others(connection, self.changes.sender, transaction.topics)
            try:
                begun.commit()
            except (OperationalError, InterfaceError) as error:
                raise _InDoubt(error) from error
        self.changes.touch(transaction.topics)
        return result

    def _tried(self, once: Callable[[], Result], repeatable: bool) -> Result:
        limit = time.monotonic() + BUSY_SECONDS
        pause = 0.01
        while True:
            try:
                return once()
            except _InDoubt as doubt:
                if (refused := _refused(doubt.error)) is not None:
                    raise refused from doubt
                if not repeatable and not _clash(doubt.error):
                    raise Unavailable(
                        "the database went away while a change was being written; look whether it is there before "
                        "sending it again"
                    ) from doubt
                error: DBAPIError = doubt.error
            except (OperationalError, InterfaceError, InternalError) as raised:
                if (refused := _refused(raised)) is not None:
                    raise refused from raised
                if not _passes(raised):
                    raise
                error = raised
            except NoConnection as waited:  # of the pool, which has waited for long
                raise Unavailable("the database does not answer: every connection to it is in use") from waited
            if time.monotonic() > limit:
                raise Unavailable(f"the database does not answer: {str(error.orig).strip().splitlines()[0]}") from error
            time.sleep(pause * (0.5 + random.random()))
            pause = min(0.5, pause * 2)

    def healthy(self) -> bool:
        """Whether the database answers now."""
        try:
            with self.engine.connect() as connection:
                connection.execute(text("SELECT 1"))
        except DBAPIError:
            return False
        return True

    def writable(self, within: float = 0.0) -> bool:
        """Whether a change could be written now. One is, which leaves everything as it was; an answer that is younger
        than `within` seconds is told again instead."""
        asked, answer = self._writable
        if time.monotonic() - asked < within:
            return answer
        try:
            self.write(_write_nothing_new)
            answer = True
        except (DBAPIError, Unavailable):
            answer = False
        self._writable = time.monotonic(), answer
        return answer

    def close(self) -> None:
        """Give every connection back."""
        self.changes.close()
        self.engine.dispose()


class _InDoubt(Exception):
    """The commit itself failed."""

    def __init__(self, error: DBAPIError) -> None:
        self.error = error
        super().__init__(str(error))


def _clash(error: DBAPIError) -> bool:
    """Whether the database says that it rolled back, so that nothing was written."""
    return getattr(error.orig, "sqlstate", None) in CLASH_CODES or "database is locked" in str(error.orig)


def _write_nothing_new(transaction: Transaction) -> None:
    """Write what stands there already, down to the disk: a commit without a change writes nothing."""
    if transaction.postgresql:
        transaction.execute(text("UPDATE alembic_version SET version_num = version_num"))
        return
    # SQLite leaves out an UPDATE that changes no byte, but writes every number that it is given for this
    number = transaction.execute(text("PRAGMA user_version")).scalar()
    transaction.execute(text(f"PRAGMA user_version = {number}"))


def _refused(error: DBAPIError) -> Unavailable | None:
    """What to say of a change that was not written and that no second try would write; None for any other error."""
    if _full(error):
        return NoSpace("the database's disk is full; free some space, then send the request again")
    if getattr(error.orig, "sqlstate", None) == "25006":
        return Unavailable(
            "the database takes no changes: it is a standby, or it was set to be read-only; let FINERY_DATABASE_URL "
            "name one that can be written, then send the request again"
        )
    if "attempt to write a readonly database" in str(error.orig):
        return Unavailable(
            "the database cannot be written: its file or the folder around it does not belong to the user that the "
            "server runs as, or the file system is mounted read-only; make it writable, then send the request again"
        )
    return None


def _full(error: DBAPIError) -> bool:
    """Whether there is no room for the change: SQLite's word for it, PostgreSQL's 53100."""
    return "database or disk is full" in str(error.orig) or getattr(error.orig, "sqlstate", None) == "53100"


def _passes(error: DBAPIError) -> bool:
    """Whether trying again may help."""
    state = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated or state in AWAY_CODES or _clash(error):
        return True
    # psycopg gives no code when the server could not be reached at all
    return state is None and type(error.orig).__module__.startswith("psycopg")
