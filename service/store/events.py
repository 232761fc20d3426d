"""Events in the store: what runs wrote, taken in exactly once, and every change of a job's state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select, update

from service.jobs.job import Event, Job
from service.jobs.states import Move, State
from service.store import tables
from service.store.attempts import writer
from service.store.database import Database, Transaction
from service.store.errors import NotFound
from service.store.jobs import append_events, apply_move, of_project
from service.store.tables import event_of, now

PROGRESS = (
    "stage",
    "step",
    "total",
    "what",
    "tokens_per_second",
    "utilisation",
    "loss",
    "learning_rate",
    "epoch",
)
"""What a job's short progress keeps of its newest events."""
SKIPPED = "any further ones are skipped without a word"
POSITION = ("what", "step", "total", "tokens_per_second", "utilisation")
"""What every `progress` event says anew."""


class EventQueries(Database):
    """The part of the store that holds events."""

    def ingest(
        self,
        attempt_id: str,
        fencing: int,
        events: Sequence[Mapping[str, object]],
        offset: int,
        *,
        skipped: int = 0,
        why: str = "",
    ) -> int:
        """Take in lines of the run's `events.jsonl`; returns how many were new.

        Lines with an id that is in the store already are left out, so that reading the file again after a crash adds
        nothing. `offset` is how many bytes of it are read. The first events of an attempt make a starting job run.
        `skipped` lines between them were no events; the first ones of an attempt leave one warning, with the reason
        `why`. Raises Fenced for an attempt that was replaced.
        """

        def work(transaction: Transaction) -> int:
            job, row = writer(transaction, attempt_id, fencing)
            newest, fresh = row["ingested"], []
            for event in events:
                if event["id"] > newest:
                    newest = event["id"]
                    fresh.append(event)
            values = {"ingested": newest, "offset": offset, "skipped_lines": row["skipped_lines"] + skipped}
            if skipped and not row["skipped_lines"]:
                message = f"a line of events.jsonl is skipped, because {why}; {SKIPPED}"
                fresh.append({"id": newest, "event": "warning", "message": message})
            transaction.execute(update(tables.attempts).where(tables.attempts.c.id == attempt_id).values(**values))
            if not fresh:
                return 0
            if job.state is State.STARTING:
                job = apply_move(transaction, job, Move.RUN)
            last = append_events(
                transaction, job, [{**event, "time": seconds(event.get("time"))} for event in fresh], attempt_id
            )
            self._store_last(transaction, job, last, progress_after(job.progress, fresh))
            return len(fresh)

        return self.write(work)

    @staticmethod
    def _store_last(transaction: Transaction, job: Job, last: int, progress: Mapping[str, object]) -> None:
        values = {"last_event": last, "progress": dict(progress), "updated": now()}
        transaction.execute(update(tables.jobs).where(tables.jobs.c.id == job.id).values(**values))

    def events_after(
        self,
        job_id: str,
        after: int = 0,
        *,
        limit: int = 500,
        project: str | None = None,
        kinds: Collection[str] | None = None,
    ) -> list[Event]:
        """A job's events with ids above `after`, oldest first. Raises NotFound for an unknown or foreign job."""
        events = tables.events
        query = select(events).where(events.c.job == job_id, events.c.id > after).order_by(events.c.id).limit(limit)
        if kinds is not None:
            query = query.where(events.c.event.in_(list(kinds)))

        def work(transaction: Transaction) -> list[Event]:
            if (
                transaction.execute(
                    of_project(select(tables.jobs.c.id).where(tables.jobs.c.id == job_id), project)
                ).first()
                is None
            ):
                raise NotFound("job", job_id)
            return [event_of(row) for row in transaction.execute(query).mappings()]

        return self.read(work)


def seconds(written: Any) -> float:
    """Seconds since 1970 of an event's RFC 3339 time; now when it has none that can be read."""
    try:
        return datetime.fromisoformat(str(written)).timestamp()
    except ValueError:
        return now()


def progress_after(before: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The short progress of a job after these events: newest stage, step, total, loss."""
    progress = dict(before)
    for event in events:
        kind, stage = event["event"], event.get("stage")
        if kind not in {"started", "progress", "metric", "checkpoint", "stage_finished"}:
            continue
        if stage is not None and stage != progress.get("stage"):
            progress = {"stage": stage}
        if kind == "progress":  # says anew what is counted and how far it is
            progress = {key: value for key, value in progress.items() if key not in POSITION}
        if kind in {"progress", "metric"}:
            fields = {**event, **(event.get("metrics") or {})}
            progress |= {key: fields[key] for key in PROGRESS if isinstance(fields.get(key), int | float | str)}
        if kind == "checkpoint":
            progress["checkpoint"] = event.get("step")
    return progress
