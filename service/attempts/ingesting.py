"""From a run folder to the store: events in batches, each exactly once, results of stages, and scores of cells.

The store keeps how far `events.jsonl` was read, in the same transaction as the events, and drops those whose ids it
has. A service that was killed between two batches therefore goes on where the store says, and a file that became
shorter (its last line was torn by a crash and cut off) is read again from the start at no harm.

Whoever runs an attempt can write anything into that file. `event_of` looks at each line once: what it lets through has
the types, the sizes and the names that the store, the pages and the API rely on. Any other line is skipped and counted.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from pipelines.core.events import EVENTS
from service.attempts.folders import Folders, open_regular
from service.jobs.job import Attempt
from service.safety.redaction import Redactor
from service.store.store import Store

BATCH_BYTES = 1 << 18
"""Read at once: some 2,000 events, one transaction."""
LONGEST_LINE = 1 << 20
"""Bytes; a longer line is skipped."""
MOST_VALUES = 20_000
"""Values in one line, inner ones counted."""
MOST_DEPTH = 16
"""Levels of lists and objects in one line."""
LONGEST_NAME = 120
"""Characters of a stage, a benchmark, a metric and every other key: databases index some of them."""
LARGEST_WHOLE = 2**53
"""What every JSON reader takes exactly."""
LONGEST_SECONDS = 1e10
EARLIEST = 946_684_800.0
"""The year 2000; a run's clock that says less, or more than a day ahead, is not believed."""
STAGE = re.compile(r"[^\x00-\x1f\x7f]{1,120}")
CELL = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*){0,3}")


class OddLine(ValueError):
    """A line that is no event; the message says why."""


@dataclass(frozen=True)
class EventBatch:
    """What a piece of the file held."""

    events: list[dict[str, Any]]
    offset: int
    """Behind it."""
    odd: int = 0
    """Lines that were skipped."""
    why: str = ""
    """What was wrong with the first of them."""


def read_batch(path: Path, offset: int, size: int = BATCH_BYTES, below: Path | None = None) -> EventBatch:
    """The whole lines after `offset`, at least one when there is one. Nothing new: the same offset again.

    No link is followed on the way from `below`, by default the file's own folder.
    """
    file = _opened(path, below)
    if file is None:
        return EventBatch([], offset)
    with file:
        length = os.fstat(file.fileno()).st_size
        if length == offset:
            return EventBatch([], offset)
        if length < offset:
            offset = 0
        file.seek(offset)
        text = file.read(size)
        while b"\n" not in text and len(text) <= LONGEST_LINE and (more := file.read(size)):
            text += more
    whole = text[: text.rfind(b"\n") + 1]
    if not whole and len(text) > LONGEST_LINE:
        return EventBatch([], offset + len(text), 1, f"it is longer than {LONGEST_LINE} bytes")
    events, odd, why = [], 0, ""
    for line in whole.split(b"\n"):
        if not line.strip():
            continue
        try:
            events.append(event_of(line, offset + len(whole)))
        except OddLine as error:
            odd, why = odd + 1, why or str(error)
    return EventBatch(events, offset + len(whole), odd, why)


def newest_event(path: Path, below: Path | None = None) -> dict[str, Any] | None:
    """The last line that is an event, looked for in the end of the file alone; `below` as for `read_batch`."""
    file = _opened(path, below)
    if file is None:
        return None
    with file:
        length = os.fstat(file.fileno()).st_size
        begin = max(0, length - 2 * LONGEST_LINE)
        file.seek(begin)
        lines = file.read(length - begin).split(b"\n")
    for line in reversed(lines[1 if begin else 0 : -1]):  # the last is empty, or torn
        try:
            return event_of(line, length)
        except OddLine:
            continue
    return None


def _opened(path: Path, below: Path | None) -> BinaryIO | None:
    """The file for reading; None where there is none, or where a link, a pipe or a device was put in its place or
    on the way to it."""
    try:
        return open_regular(path, below or path.parent)
    except (OSError, ValueError):
        return None


def event_of(line: bytes, length: int) -> dict[str, Any]:
    """The event in one line of a file that is `length` bytes long. Raises OddLine.

    Ids count lines, so none is much larger than the file. What is no finite number becomes text, and letters that a
    database refuses are left out.
    """
    if len(line) > LONGEST_LINE:
        raise OddLine(f"it is longer than {LONGEST_LINE} bytes")
    try:
        read = json.loads(line)
    except (ValueError, RecursionError):
        raise OddLine("it is not JSON") from None
    if not isinstance(read, dict):
        raise OddLine("it is no object")
    event: dict[str, Any] = _BoundedCopy().value(read, 1)
    number = event.get("id")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number <= length + LONGEST_LINE:
        raise OddLine("its id does not count lines")
    if not isinstance(event.get("event"), str) or event["event"] not in EVENTS:
        raise OddLine("it is no event of a run")
    for name, check in {**CHECKS, **(OF_CELLS if event["event"] == "cell" else {})}.items():
        if name not in event:
            continue
        if event[name] is None:
            del event[name]
            continue
        try:
            event[name] = check(event[name])
        except ValueError as error:
            raise OddLine(f"its {name} {error}") from None
    return event


class _BoundedCopy:
    """Copies what was read, within bounds."""

    def __init__(self) -> None:
        self._values = 0

    def value(self, value: Any, depth: int) -> Any:
        self._values += 1
        if self._values > MOST_VALUES:
            raise OddLine(f"it holds more than {MOST_VALUES} values")
        if isinstance(value, dict | list):
            if depth > MOST_DEPTH:
                raise OddLine(f"it is nested more than {MOST_DEPTH} levels deep")
            if isinstance(value, list):
                return [self.value(each, depth + 1) for each in value]
            return {self._name(name): self.value(each, depth + 1) for name, each in value.items()}
        if isinstance(value, str):
            return plain_text(value)
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if _is_whole(value) and not -LARGEST_WHOLE <= value <= LARGEST_WHOLE:
            return f"{value:.6e}" if abs(value) < 10**300 else "inf"
        return value

    @staticmethod
    def _name(name: str) -> str:
        plain = plain_text(name)
        if len(plain) > LONGEST_NAME:
            raise OddLine(f"it names something with more than {LONGEST_NAME} characters")
        return plain


def plain_text(text: str) -> str:
    """A text as every database takes it: without NUL, and without halves of surrogate pairs."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("is no text")
    return value


def _stage(value: object) -> str:
    if not isinstance(value, str) or STAGE.fullmatch(value) is None:
        raise ValueError(f"is no name of 1 to {LONGEST_NAME} characters")
    return value


def _cell(value: object) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_NAME or CELL.fullmatch(value) is None:
        raise ValueError("is no name such as cells/01")
    return value


def _count(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not _is_whole(value) or not 0 <= value <= LARGEST_WHOLE:
        raise ValueError("is no whole number from 0")
    return int(value)


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LONGEST_SECONDS:
        raise ValueError("is no number of seconds")
    return float(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is neither true nor false")
    return value


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("is no object")
    return value


def _words(value: object) -> dict[str, str]:
    return {name: each if isinstance(each, str) else json.dumps(each) for name, each in _object(value).items()}


def _number(value: object) -> Any:
    """A number, or the text that stands for one that is not finite."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | str)
        or (isinstance(value, str) and len(value) > 40)
    ):
        raise ValueError("is no number")
    return value


def _time(value: Any) -> str:
    """The time as it is written when it can be read and believed, else the time now."""
    now = time.time()
    try:
        if EARLIEST <= datetime.fromisoformat(value).timestamp() <= now + 86_400:
            return str(value)
    except (ValueError, TypeError, OverflowError, OSError):
        pass
    return datetime.fromtimestamp(now, UTC).isoformat()


CHECKS: dict[str, Callable[[Any], Any]] = {
    "time": _time,
    "stage": _stage,
    "step": _count,
    "total": _count,
    "what": _text,
    "metrics": _object,
    "seconds": _seconds,
    "reused": _truth,
    "fingerprint": _stage,
    "message": _text,
    "reason": _text,
    "path": _text,
    "tokens_per_second": _number,
    "utilisation": _number,
    "loss": _number,
    "learning_rate": _number,
    "epoch": _number,
}
"""What the server reads of an event: field -> the check that gives its value. A null is as good as no field."""
OF_CELLS: dict[str, Callable[[Any], Any]] = {"cell": _cell, "status": _stage, "labels": _words}
"""The same of a study's cells."""


def plain_scores(scores: object) -> dict[str, dict[str, float]]:
    """The numbers of `{"glue/mrpc": {"f1": 0.9}}`, as far as it holds some; for what a publication says of itself."""
    numbers: dict[str, dict[str, float]] = {}
    left = MOST_VALUES
    for benchmark, values in scores.items() if isinstance(scores, Mapping) else ():
        for metric, value in values.items() if isinstance(values, Mapping) else ():
            left -= 1
            names = (
                isinstance(benchmark, str)
                and isinstance(metric, str)
                and max(len(benchmark), len(metric)) <= LONGEST_NAME
            )
            whole = (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and -LARGEST_WHOLE <= value <= LARGEST_WHOLE
            )
            if left >= 0 and names and whole:
                numbers.setdefault(plain_text(benchmark), {})[plain_text(metric)] = float(value)
    return numbers


def plain_count(value: Any) -> int | None:
    """A number of parameters; None for anything else."""
    return value if _is_whole(value) and 0 <= value <= LARGEST_WHOLE else None


def is_score(metrics: object) -> bool:
    """Whether a stage's metrics are benchmarks' scores, `{"glue/mrpc": {"f1": …}}`, and not a training's numbers."""
    return isinstance(metrics, dict) and bool(metrics) and all(isinstance(values, dict) for values in metrics.values())


BATCHES = 16
"""Taken in at most before others have their turn."""
DONE = frozenset({"done", "reused"})
MOST_OF_CELL = 1 << 26
"""Bytes of a cell's own stream that are looked through for its scores."""
BATCHES_OF_CELL = 2 * MOST_OF_CELL // BATCH_BYTES
"""In which they are read at most: any two in a row hold BATCH_BYTES, unless the file grows meanwhile, line by line."""

log = logging.getLogger(__name__)


class Intake:
    """One attempt's stream, from where the store says that it was read to its end."""

    def __init__(self, store: Store, folders: Folders, attempt: Attempt, redactor: Redactor) -> None:
        self._store = store
        self._folders = folders
        self._attempt = attempt
        self._redactor = redactor

    def take(self, fencing: int, batches: int | None = BATCHES) -> int:
        """Move what is new into the store; `batches=None` takes all. Returns how many events. Raises Fenced.

        Results are written before the events that tell of them: whoever is killed in between does both again, and
        writing a result twice changes nothing.
        """
        offset, taken = self._attempt.offset, 0
        while batches is None or batches > 0:
            batch = read_batch(self._folders.events, offset, below=self._folders.job)
            if batch.offset == offset:
                return taken
            if batch.odd:
                log.warning(
                    "attempt %s: %d lines of its events are skipped; of the first: %s",
                    self._attempt.id,
                    batch.odd,
                    batch.why,
                )
            redacted = [self._redactor.plain(event) for event in batch.events]
            cells: set[str] = set()
            for event in redacted:
                self._keep_results(event, fencing, cells)
            taken += self._store.ingest(
                self._attempt.id, fencing, redacted, batch.offset, skipped=batch.odd, why=batch.why
            )
            offset = batch.offset
            batches = None if batches is None else batches - 1
        return taken

    def last_word(self) -> dict[str, Any] | None:
        """The newest event, when it was written during this attempt."""
        last = newest_event(self._folders.events, self._folders.job)
        if last is None or "time" not in last:
            return None
        began = self._attempt.started or self._attempt.created
        return (
            dict(self._redactor.plain(last))
            if datetime.fromisoformat(last["time"]).timestamp() >= began - 1.0
            else None
        )

    def _keep_results(self, event: dict[str, Any], fencing: int, cells: set[str]) -> None:
        """`cells` are those whose scores were kept since the last batch."""
        stage = event.get("stage")
        if event["event"] == "stage_finished" and isinstance(stage, str) and stage != "tokenizer":
            self._record(fencing, stage, event)
        elif (
            event["event"] == "cell" and event.get("status") in DONE and "cell" in event and event["cell"] not in cells
        ):
            cells.add(event["cell"])
            for name, finished in finished_stages(
                self._folders.run / "cells" / Path(event["cell"]).name / "events.jsonl", self._folders.job
            ):
                if is_score(finished.get("metrics")):  # what the leaderboard shows of a study
                    self._record(fencing, f"{event['cell']}/{name}", finished)

    def _record(self, fencing: int, stage: str, event: dict[str, Any]) -> None:
        metrics = event.get("metrics") or {}
        self._store.record_stage(
            self._attempt.id,
            fencing,
            stage,
            fingerprint=event.get("fingerprint", ""),
            seconds=event.get("seconds", 0.0),
            reused=event.get("reused", False),
            metrics=metrics,
            with_scores=is_score(metrics),
        )


def finished_stages(path: Path, below: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(stage, its newest `stage_finished` event) of a cell's own stream."""
    newest: dict[str, dict[str, Any]] = {}
    offset = 0
    for _ in range(BATCHES_OF_CELL):
        batch = read_batch(path, offset, below=below)
        if batch.offset <= offset:  # its end, or it became shorter meanwhile: it is not begun anew for ever
            break
        offset = batch.offset
        newest |= {
            event["stage"]: event for event in batch.events if event["event"] == "stage_finished" and "stage" in event
        }
        if offset >= MOST_OF_CELL:
            break
    yield from newest.items()


def plain_record(handle: Any) -> dict[str, Any]:
    """An executor's record as the JSON that the store keeps."""
    return dict(json.loads(json.dumps(dict(handle))))
