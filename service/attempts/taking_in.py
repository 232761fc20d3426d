"""Takes in what a run writes: its events, the results of its stages, and the scores of a study's cells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.attempts.folders import Folders
from service.attempts.ingesting import is_score, read_batch
from service.jobs.job import Attempt
from service.safety.secrets import Redactor

if TYPE_CHECKING:
    from service.store.store import Store

BATCHES = 16
"""Taken in at most before others have their turn."""
DONE = frozenset({"done", "reused"})


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
            events, after = read_batch(self._folders.events, offset)
            if after == offset:
                return taken
            told = [self._redactor.plain(event) for event in events]
            for event in told:
                self._keep_results(event, fencing)
            taken += self._store.ingest(self._attempt.id, fencing, told, after)
            offset = after
            batches = None if batches is None else batches - 1
        return taken

    def last_word(self) -> dict[str, Any] | None:
        """The newest event, when it was written during this attempt."""
        last = None
        offset = 0
        while True:
            events, after = read_batch(self._folders.events, offset, 1 << 20)
            if after == offset:
                break
            offset, last = after, events[-1] if events else last
        if last is None:
            return None
        began = self._attempt.started or self._attempt.created
        try:
            written = datetime.fromisoformat(str(last.get("time"))).timestamp()
        except ValueError:
            return None
        return self._redactor.plain(last) if written >= began - 1.0 else None

    def _keep_results(self, event: dict[str, Any], fencing: int) -> None:
        stage = event.get("stage")
        if event["event"] == "stage_finished" and isinstance(stage, str) and stage != "tokenizer":
            self._record(fencing, stage, event)
        elif event["event"] == "cell" and event.get("status") in DONE and isinstance(event.get("cell"), str):
            for name, finished in finished_stages(self._folders.run / "cells" / Path(event["cell"]).name / "events.jsonl"):
                if is_score(finished.get("metrics")):  # what the leaderboard shows of a study
                    self._record(fencing, f"{event['cell']}/{name}", finished)

    def _record(self, fencing: int, stage: str, event: dict[str, Any]) -> None:
        metrics = event.get("metrics") or {}
        self._store.record_stage(
            self._attempt.id, fencing, stage, fingerprint=str(event.get("fingerprint", "")), seconds=float(event.get("seconds") or 0.0),
            reused=bool(event.get("reused", False)), metrics=metrics, with_scores=is_score(metrics),
        )  # fmt: skip


def finished_stages(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(stage, its newest `stage_finished` event) of a cell's own stream."""
    found: dict[str, dict[str, Any]] = {}
    offset = 0
    while True:
        events, after = read_batch(path, offset)
        if after == offset:
            break
        offset = after
        found |= {str(event["stage"]): event for event in events if event["event"] == "stage_finished" and "stage" in event}
    yield from found.items()


def plain_record(handle: Any) -> dict[str, Any]:
    """An executor's record as the JSON that the store keeps."""
    return dict(json.loads(json.dumps(dict(handle))))
