"""Brings a database to the newest schema, by one process at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import OperationalError

from pipelines.errors import FineryError
from service.store.database import Database
from service.store.errors import Unavailable

FOLDER = Path(__file__).parent / "migrations"
NEWEST = "0004"
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
        raise Unavailable(f"cannot open the database {database.url.render_as_string()}: {str(error.orig).strip().splitlines()[0]}") from error


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
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if found is not None and not any((FOLDER / "versions").glob(f"{found}_*.py")):
        raise SchemaTooNew(f"the database has schema {found}, this version of finery knows up to {NEWEST}; install the version that wrote it, or a later one")
    return None if found is None else str(found)


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
