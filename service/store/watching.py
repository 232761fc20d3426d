"""How a process hears what others wrote: LISTEN on PostgreSQL, `PRAGMA data_version` on SQLite."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable

from sqlalchemy import URL, Connection, text

from service.store.changes import Changes

CHANNEL = "finery_changes"
INTERVAL = 0.05
"""Seconds between two looks at SQLite's counter; a look costs some 10 µs."""
PAYLOAD = 7900
"""Bytes that NOTIFY takes (postgresql.org/docs/current/sql-notify.html: below 8000)."""

Watch = Callable[[Changes, threading.Event], None]


def watch_for(url: URL) -> Watch | None:
    """What to run in the listening thread for this database; None for one that no other process can see."""
    if url.get_backend_name() == "postgresql":
        return lambda changes, stop: _listen(url, changes, stop)
    if url.database in (None, "", ":memory:"):
        return None
    return lambda changes, stop: _poll(str(url.database), changes, stop)


def tell_others(connection: Connection, sender: str, topics: set[str]) -> None:
    """Queue a message that PostgreSQL delivers when the transaction commits. SQLite needs none."""
    if connection.dialect.name != "postgresql" or not topics:
        return
    message = json.dumps([sender, *sorted(topics)])
    if len(message.encode()) > PAYLOAD:
        message = json.dumps([sender])
    connection.execute(text("SELECT pg_notify(:channel, :message)"), {"channel": CHANNEL, "message": message})


def _poll(path: str, changes: Changes, stop: threading.Event) -> None:
    seen = None
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        while not stop.wait(INTERVAL):
            with contextlib.suppress(sqlite3.OperationalError):  # busy for a moment: the next look sees it
                version = connection.execute("PRAGMA data_version").fetchone()[0]
                if version != seen:  # the first look too: something may have happened while nobody listened
                    changes.touch_all()
                seen = version


def _listen(url: URL, changes: Changes, stop: threading.Event) -> None:
    import psycopg

    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    while not stop.is_set():
        try:
            with psycopg.connect(address, autocommit=True, connect_timeout=5) as connection:
                connection.execute(f"LISTEN {CHANNEL}")
                changes.touch_all()  # what happened while nobody listened
                while not stop.is_set():
                    for notice in connection.notifies(timeout=0.5):
                        sender, *topics = json.loads(notice.payload)
                        if sender != changes.sender:
                            changes.touch(topics) if topics else changes.touch_all()
        except psycopg.Error:
            stop.wait(0.5)
