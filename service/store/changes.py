"""Tells who waits that something changed: at once within a process, within 50 ms from another one.

A topic is a word such as `jobs` or `job:<id>`. It carries no content: whoever is woken asks the database. Waking too
often is allowed, missing a change is not: read `version` first, then the database, then `wait` for a later version.
What other processes wrote is heard by LISTEN on PostgreSQL, and by `PRAGMA data_version` on SQLite.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from uuid import uuid4

from sqlalchemy import URL, Connection, text

JOBS = "jobs"
"""Anything about any job changed."""
QUEUE = "queue"
"""Something that decides who runs next changed: a job's state or priority, a host, a project's limits."""
ATTEMPTS = "attempts"
"""Some attempt is to be started or stopped."""
ACCESS = "access"
"""A token was revoked or a session ended: whoever streams asks again whether it may."""
BUCKETS = 4096
"""Topics share this many counters, so that a million jobs need no more memory than one."""
Callback = Callable[[], None]


def job_topic(job: str) -> str:
    """The topic of one job's events."""
    return f"job:{job}"


class Changes:
    """Counters of changes by topic, with threads that wait for them and callbacks."""

    def __init__(self, watch: Callable[[Changes, threading.Event], None] | None = None) -> None:
        self.sender = uuid4().hex
        """Names this process in messages, so that it does not wake itself twice."""
        self._counts = [0] * BUCKETS
        self._condition = threading.Condition()
        self._callbacks: dict[str, set[Callback]] = {}
        self._watch = watch
        self._watcher: threading.Thread | None = None
        self._stop = threading.Event()

    def version(self, topic: str) -> int:
        """Grows with every change of the topic."""
        self._watch_others()
        with self._condition:
            return self._counts[hash(topic) % BUCKETS]

    def touch(self, topics: Iterable[str]) -> None:
        """Wake whoever waits for one of these topics."""
        topics = set(topics)
        if not topics:
            return
        with self._condition:
            for bucket in {hash(topic) % BUCKETS for topic in topics}:
                self._counts[bucket] += 1
            called = [callback for topic in topics for callback in self._callbacks.get(topic, ())]
            self._condition.notify_all()
        self._call(called)

    def touch_all(self) -> None:
        """Something changed and nobody knows what: wake everybody."""
        with self._condition:
            self._counts = [count + 1 for count in self._counts]
            called = [callback for callbacks in self._callbacks.values() for callback in callbacks]
            self._condition.notify_all()
        self._call(called)

    @staticmethod
    def _call(callbacks: Iterable[Callback]) -> None:
        for callback in callbacks:
            with contextlib.suppress(RuntimeError):  # an event loop that was closed meanwhile
                callback()

    def wait(self, topic: str, seen: int, timeout: float) -> int:
        """Block until the topic's version differs from `seen`, or for `timeout` seconds; returns the version."""
        self._watch_others()
        bucket = hash(topic) % BUCKETS
        limit = time.monotonic() + timeout
        with self._condition:
            while self._counts[bucket] == seen and not self._stop.is_set():
                left = limit - time.monotonic()
                if left <= 0:
                    break
                self._condition.wait(left)
            return self._counts[bucket]

    def subscribe(self, topic: str, callback: Callback) -> Callable[[], None]:
        """Call `callback` (from any thread; it must be quick) at every change. Returns what ends the subscription."""
        self._watch_others()
        with self._condition:
            self._callbacks.setdefault(topic, set()).add(callback)

        def end() -> None:
            with self._condition:
                callbacks = self._callbacks.get(topic, set())
                callbacks.discard(callback)
                if not callbacks:
                    self._callbacks.pop(topic, None)

        return end

    def _watch_others(self) -> None:
        """Start the thread that hears other processes, once somebody listens."""
        if self._watch is None or self._watcher is not None:
            return
        with self._condition:
            if self._watcher is None and not self._stop.is_set():
                self._watcher = threading.Thread(
                    target=self._watch, args=(self, self._stop), name="store-changes", daemon=True
                )
                self._watcher.start()

    def close(self) -> None:
        """Stop listening and wake everybody."""
        self._stop.set()
        self.touch_all()
        if self._watcher is not None:
            self._watcher.join(5)


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
