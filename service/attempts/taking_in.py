"""Takes in what a run writes: its events, the results of its stages, and the scores of a study's cells."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.attempts.folders import Folders
from service.attempts.ingesting import is_score, newest_event, read_batch
from service.jobs.job import Attempt
from service.safety.secrets import Redactor

if TYPE_CHECKING:
    from service.store.store import Store

BATCHES = 16
"""Taken in at most before others have their turn."""
DONE = frozenset({"done", "reused"})
MOST_OF_CELL = 1 << 26
"""Bytes of a cell's own stream that are looked through for its scores."""

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
                log.warning("attempt %s: %d lines of its events are skipped; of the first: %s", self._attempt.id, batch.odd, batch.why)
            told = [self._redactor.plain(event) for event in batch.events]
            cells: set[str] = set()
            for event in told:
                self._keep_results(event, fencing, cells)
            taken += self._store.ingest(self._attempt.id, fencing, told, batch.offset, skipped=batch.odd, why=batch.why)
            offset = batch.offset
            batches = None if batches is None else batches - 1
        return taken

    def last_word(self) -> dict[str, Any] | None:
        """The newest event, when it was written during this attempt."""
        last = newest_event(self._folders.events, self._folders.job)
        if last is None or "time" not in last:
            return None
        began = self._attempt.started or self._attempt.created
        return dict(self._redactor.plain(last)) if datetime.fromisoformat(last["time"]).timestamp() >= began - 1.0 else None

    def _keep_results(self, event: dict[str, Any], fencing: int, cells: set[str]) -> None:
        """`cells` are those whose scores were kept since the last batch."""
        stage = event.get("stage")
        if event["event"] == "stage_finished" and isinstance(stage, str) and stage != "tokenizer":
            self._record(fencing, stage, event)
        elif event["event"] == "cell" and event.get("status") in DONE and "cell" in event and event["cell"] not in cells:
            cells.add(event["cell"])
            for name, finished in finished_stages(self._folders.run / "cells" / Path(event["cell"]).name / "events.jsonl", self._folders.job):
                if is_score(finished.get("metrics")):  # what the leaderboard shows of a study
                    self._record(fencing, f"{event['cell']}/{name}", finished)

    def _record(self, fencing: int, stage: str, event: dict[str, Any]) -> None:
        metrics = event.get("metrics") or {}
        self._store.record_stage(
            self._attempt.id, fencing, stage, fingerprint=event.get("fingerprint", ""), seconds=event.get("seconds", 0.0),
            reused=event.get("reused", False), metrics=metrics, with_scores=is_score(metrics),
        )  # fmt: skip


def finished_stages(path: Path, below: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(stage, its newest `stage_finished` event) of a cell's own stream."""
    found: dict[str, dict[str, Any]] = {}
    offset = 0
    while offset < MOST_OF_CELL:
        batch = read_batch(path, offset, below=below)
        if batch.offset == offset:
            break
        offset = batch.offset
        found |= {event["stage"]: event for event in batch.events if event["event"] == "stage_finished" and "stage" in event}
    yield from found.items()


def plain_record(handle: Any) -> dict[str, Any]:
    """An executor's record as the JSON that the store keeps."""
    return dict(json.loads(json.dumps(dict(handle))))
