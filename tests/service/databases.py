"""Databases for tests: a SQLite file each, and a PostgreSQL database of this run's own where a server answers."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import psycopg

SERVER = os.environ.get("FINERY_TEST_POSTGRESQL", "postgresql://postgres@127.0.0.1:5432/test")
"""Where tests look for PostgreSQL; the user must be allowed to create databases."""


@cache
def missing() -> str | None:
    """Why there is no PostgreSQL to test on; None when there is one."""
    try:
        psycopg.connect(SERVER, connect_timeout=3).close()
    except psycopg.OperationalError as error:
        return f"no PostgreSQL answers at {SERVER}: {str(error).strip().splitlines()[0]}"
    return None


@contextmanager
def fresh_postgresql() -> Iterator[str]:
    """The URL of an empty database, which is dropped at the end."""
    name = f"finery_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(SERVER, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    try:
        yield f"{SERVER.rpartition('/')[0]}/{name}"
    finally:
        with psycopg.connect(SERVER, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
