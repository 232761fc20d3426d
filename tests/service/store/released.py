"""Dumps of the schemas that servers ran with, and rows in every table: what an upgrade begins with.

A dump is what a server of that time left, written by its own code, and never changed again. Before a schema follows another
`python -m tests.service.store.released` writes those that are missing into `released/`, one for SQLite and one for
PostgreSQL (by `pg_dump`). Of a revision that has none yet the same rows are made when the test runs, by the store's own
functions at the newest schema, taken down to that revision.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg

from service.settings import read_settings
from service.store.projects import digest
from service.store.store import FOLDER, Store, downgrade, upgrade

DUMPS = Path(__file__).parent / "released"
TOKEN = f"fin_{'released0000'}_{'r' * 43}"
"""An admin's token in every dump."""


def revisions() -> list[str]:
    """Every revision of the migrations, oldest first."""
    return sorted(path.name.partition("_")[0] for path in (FOLDER / "versions").glob("[0-9]*.py"))


def dump_of(revision: str, database: str) -> Path:
    """Where the dump of a revision lies, `database` is sqlite or postgresql."""
    return DUMPS / f"{revision}.{database}.sql"


def filled_at(url: str, revision: str) -> None:
    """Fill an empty database with rows in every table, at this revision."""
    from tests.service.store.test_store import filled

    store = Store(read_settings({}, database_url=url).url)
    upgrade(store)
    filled(store)
    prefix, secret = TOKEN.split("_")[1:]
    store.add_token(prefix, digest(secret), project="p", role="admin")
    downgrade(store, revision)
    store.close()


def written(url: str) -> str:
    """The database as SQL."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        lines = "\n".join(connection.iterdump())
        connection.close()
        return lines + "\n"
    command = ["pg_dump", "--inserts", "--no-owner", "--no-privileges", url]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kept = [line for line in text.splitlines() if line and not line.startswith(("--", "SET ", "\\"))]
    return "\n".join(line for line in kept if "set_config('search_path'" not in line) + "\n"


def load(dump: str, url: str) -> None:
    """Make an empty database what it was when it was dumped."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.executescript(dump)
        connection.close()
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(dump.encode())


def main() -> None:
    """Write the dumps that are missing."""
    from tests.service.databases import fresh_postgresql

    DUMPS.mkdir(exist_ok=True)
    os.umask(0o022)
    for revision in revisions():
        if not (path := dump_of(revision, "sqlite")).exists():
            with tempfile.TemporaryDirectory() as folder:
                filled_at(url := f"sqlite:///{folder}/finery.db", revision)
                path.write_text(written(url))
                print(path, file=sys.stderr)
        if not (path := dump_of(revision, "postgresql")).exists():
            with fresh_postgresql() as url:
                filled_at(url, revision)
                path.write_text(written(url))
                print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
