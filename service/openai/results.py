"""What a finished job leaves on this surface: its trained tokens and the file with its metrics by step."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from service.api.context import Service
from service.jobs.job import Event, Job
from service.jobs.states import State
from service.openai.methods import STAGE_IDS
from service.openai.objects import step_metrics
from service.receiving import receive
from service.uploads import TooLarge

COLUMNS = ("step", "train_loss", "train_accuracy", "valid_loss", "valid_mean_token_accuracy")
"""Of `step_metrics.csv`; what is not measured stays empty."""
PURPOSE = "fine-tune-results"


def settled(service: Service, job: Job) -> Job:
    """The job with its results; they are made once, when a succeeded job is first looked at."""
    if job.state is not State.SUCCEEDED or "result_files" in job.request.openai:
        return job
    lease = service.store.acquire(f"openai-results:{job.id}", uuid4().hex, 60.0)
    if lease is None:  # another request is making them at this moment
        return job
    try:
        fresh = service.store.job(job.id)
        if "result_files" in fresh.request.openai:
            return fresh
        lines = steps(service, job)
        files = _kept(service, job, table(lines, validation_loss(service, job)))
        return service.store.update_openai(job.id, {"trained_tokens": trained_tokens(lines), "result_files": files})
    finally:
        service.store.release(lease)


def _kept(service: Service, job: Job, text: str) -> list[str]:
    """The id of the file with the metrics; none when the project has no room left for it."""
    try:
        return [receive(service.store, service.settings, job.project, "step_metrics.csv", PURPOSE, io.BytesIO(text.encode())).id]
    except TooLarge:
        return []


def metric_events(service: Service, job: Job) -> Iterator[Event]:
    """The training steps that reported something, oldest first."""
    after = 0
    while rows := service.store.events_after(job.id, after, limit=5000, kinds=["metric"]):
        after = rows[-1].id
        yield from (row for row in rows if row.stage in STAGE_IDS)


def steps(service: Service, job: Job) -> dict[int, Event]:
    """By step; one that was done again after a resume counts as it was done last."""
    return {event.step: event for event in metric_events(service, job) if event.step is not None}


def trained_tokens(lines: dict[int, Event]) -> int | None:
    """Tokens that the model read while it was trained, padding left out."""
    seen = [event.fields.get("metrics", {}).get("num_input_tokens_seen") for event in lines.values()]
    return max((int(value) for value in seen if isinstance(value, int | float)), default=None)


def validation_loss(service: Service, job: Job) -> float | None:
    """Mean loss of a token of the validation file: the logarithm of the perplexity that the evaluate stage measured."""
    for result in service.store.stage_results(job.id):
        scores: Any = result.metrics.get("supervised")
        perplexity = scores.get("perplexity") if isinstance(scores, dict) else None
        if isinstance(perplexity, int | float) and perplexity > 0:
            return math.log(perplexity)
    return None


def table(lines: dict[int, Event], validation: float | None) -> str:
    """`step_metrics.csv`; the validation loss stands with the last step, where it was measured."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    rows = [step_metrics(event) for _, event in sorted(lines.items())]
    if rows and validation is not None:
        rows[-1]["valid_loss"] = validation
    writer.writerows(rows)
    return text.getvalue()
