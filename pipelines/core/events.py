"""The one stream of events of a run: `events.jsonl`, one JSON object a line.

`{"id": 17, "time": "2026-11-21T10:00:00.000000+00:00", "event": "metric", "stage": "mrpc", "step": 40, "metrics":
{"loss": 0.51}}`

Ids strictly increase and survive a resume and several processes: each append takes a file lock, cuts off a line
torn by a crash, and continues from the last whole one. The progress bar, the logs and the service read this file.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipelines.core.files import finite

EVENTS = {
    "started": "a run or a stage begins",
    "progress": (
        "how far a stage is: step, total, what; of a training stage tokens_per_second, and utilisation where known; "
        "of a mixture or a stream at its end datasets: by name the examples, tokens, share and epochs that were drawn"
    ),
    "metric": "numbers of a training step: step, metrics",
    "distributed": (
        "processes begin to train together: profile, num_processes, ranks with rank, and local and global, the numbers "
        "of the weights that it holds and of all"
    ),
    "checkpoint": "a checkpoint is complete: step, path",
    "cell": (
        "a run of a study changed: cell, status (running, done, reused, failed, refused, stopped), labels, "
        "message, seconds"
    ),
    "stage_finished": "a stage is complete: seconds, reused, metrics",
    "sample": "text or predictions worth a look",
    "warning": "something the user should know: message",
    "failed": "the run ended with an error: message, reason",
    "stopped": "the run was stopped by a signal and can be resumed",
    "finished": "the run is complete: seconds",
}
"""Every kind of event, and what its fields say."""


class EventLog:
    """Appends to one `events.jsonl`. Safe for several processes; cheap enough for every step."""

    def __init__(self, path: Path, stage: str | None = None) -> None:
        self.path = path
        self.stage = stage
        self._size = -1
        self._last_id = 0

    def of(self, stage: str) -> EventLog:
        """The same file, every event marked with `stage`."""
        return EventLog(self.path, stage)

    def emit(self, event: str, **fields: Any) -> int:
        """Append one event; returns its id. Raises ValueError for an unknown kind, OSError when the disk refuses."""
        if event not in EVENTS:
            raise ValueError(f"unknown event '{event}'; known: {', '.join(EVENTS)}")
        with open(self.path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            if size != self._size:
                self._last_id, size = _last_event(file, size)
                file.truncate(size)
            record: dict[str, Any] = {"id": self._last_id + 1, "time": datetime.now(UTC).isoformat(), "event": event}
            if self.stage is not None:
                record["stage"] = self.stage
            record |= fields
            line = (
                json.dumps(finite(record), ensure_ascii=False, default=str).encode(errors="replace") + b"\n"
            )  # half a surrogate pair has no UTF-8
            file.seek(0, os.SEEK_END)
            file.write(line)
            file.flush()
            self._last_id += 1
            self._size = size + len(line)
        return self._last_id


def _last_event(file: Any, size: int) -> tuple[int, int]:
    """Id of the last whole line, and the length of the file up to it."""
    window = 1 << 16
    while True:
        start = max(0, size - window)
        file.seek(start)
        tail = file.read(size - start)
        end = len(tail)
        while (stop := tail.rfind(b"\n", 0, end)) >= 0:
            begin = tail.rfind(b"\n", 0, stop) + 1
            if begin == 0 and start > 0:
                break
            try:
                return int(json.loads(tail[begin:stop])["id"]), start + stop + 1
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                end = stop
        if start == 0:
            return 0, 0
        window *= 4


def read_events(path: Path, after: int = 0) -> Iterator[dict[str, Any]]:
    """Every whole event with an id above `after`, oldest first. A torn last line is left out."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                new = record["id"] > after
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            if new:
                yield record
