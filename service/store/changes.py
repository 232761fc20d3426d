"""Tells who waits that something changed: at once within a process, within 50 ms from another one.

A topic is a word such as `jobs` or `job:<id>`. It carries no content: whoever is woken asks the database. Waking too
often is allowed, missing a change is not: read `version` first, then the database, then `wait` for a later version.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from uuid import uuid4

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
                self._watcher = threading.Thread(target=self._watch, args=(self, self._stop), name="store-changes", daemon=True)
                self._watcher.start()

    def close(self) -> None:
        """Stop listening and wake everybody."""
        self._stop.set()
        self.touch_all()
        if self._watcher is not None:
            self._watcher.join(5)
