"""Jobs, events, files, models and results of finished jobs as OpenAI's objects.

A finished job leaves its trained tokens, and a file with its metrics by step.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from service.api.context import Service
from service.api.documents import finite
from service.jobs.job import Event, Job
from service.jobs.states import State
from service.openai.recipes import STAGE_IDS, VALIDATED
from service.safety.redaction import Redactor
from service.store.errors import NotFound
from service.store.files import READY, File
from service.store.models import PublishedModel
from service.uploads import TooLarge, receive

STATUS = {
    State.QUEUED: "queued",
    State.STARTING: "queued",
    State.RUNNING: "running",
    State.RECOVERING: "running",
    State.PAUSING: "running",
    State.PAUSED: "paused",
    State.CANCELLING: "cancelled",
    State.CANCELLED: "cancelled",
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
}
"""Our states in OpenAI's words. `validating_files` never occurs: files are checked before a job is made."""
STATE_MESSAGES = {
    State.QUEUED: "The job waits for resources",
    State.STARTING: "The job starts",
    State.RUNNING: "Fine-tuning job started",
    State.RECOVERING: "The job is moved and goes on from its last checkpoint",
    State.PAUSING: "The job is being paused",
    State.PAUSED: "The job is paused",
    State.CANCELLING: "The job is being cancelled",
    State.CANCELLED: "The job was cancelled",
    State.SUCCEEDED: "The job has successfully completed",
    State.FAILED: "The job failed",
}


ERROR = {
    "description": "OpenAI's error envelope.",
    "content": {"application/json": {"schema": {"type": "object", "properties": {"error": {"type": "object"}}}}},
}
"""The answer of a route that refuses, for the documents of the API."""


def listed(data: list[dict[str, object]], has_more: bool) -> dict[str, Any]:
    """A page as OpenAI has it."""
    return {
        "object": "list",
        "data": data,
        "has_more": has_more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def job_id_of(identifier: str) -> str:
    """`job-…` of `ftjob-…`; anything else stays, and will not be found."""
    return identifier.removeprefix("ft") if identifier.startswith("ftjob-") else f"?{identifier}"


def public_id(job: Job) -> str:
    """`ftjob-…` of `job-…`."""
    return f"ft{job.id}"


def job_object(job: Job, redactor: Redactor) -> dict[str, Any]:
    """A `fine_tuning.job`."""
    openai = job.request.openai
    every = openai.get("hyperparameters", {})
    numbers = {key: every.get(key) for key in ("n_epochs", "batch_size", "learning_rate_multiplier")}
    method = str(openai.get("method") or "supervised")
    settings = {
        "hyperparameters": dict(every) if method == "dpo" else numbers,
        **({"grader": openai["grader"]} if "grader" in openai else {}),
    }
    succeeded = job.state is State.SUCCEEDED
    failed = job.state is State.FAILED
    code = str(job.reason or "internal")
    return {
        "id": public_id(job),
        "object": "fine_tuning.job",
        "created_at": int(job.created),
        "finished_at": int(job.finished) if job.finished else None,
        "model": openai.get("model"),
        "fine_tuned_model": openai.get("fine_tuned_model") if succeeded else None,
        "organization_id": job.project,
        "status": STATUS[job.state],
        "training_file": openai.get("training_file"),
        "validation_file": openai.get("validation_file"),
        "result_files": list(openai.get("result_files", ())) if succeeded else [],
        "trained_tokens": openai.get("trained_tokens") if succeeded else None,
        "hyperparameters": numbers,
        "method": {"type": method, method: settings},
        "seed": openai.get("seed", 0),
        "error": {
            "code": code,
            "message": redactor.text(job.message) or code,
            "param": "training_file" if code == "data_error" else None,
        }
        if failed
        else None,
        "estimated_finish": None,
        "integrations": [],
        "metadata": openai.get("metadata") or {},
        "suffix": openai.get("suffix"),
    }


def event_object(job: Job, event: Event, total: int | None, redactor: Redactor) -> dict[str, Any] | None:
    """A `fine_tuning.job.event`, or None for events that say nothing to this surface."""
    text = message_of(event, total)
    if text is None:
        return None
    level, message, data = text
    kind = "metrics" if event.event == "metric" else "message"
    return {
        "object": "fine_tuning.job.event",
        "id": f"ftevent-{job.id.removeprefix('job-')}-{event.id}",
        "created_at": int(event.time),
        "level": level,
        "message": redactor.text(message),
        "type": kind,
        "data": redactor.plain(finite(data)),
    }


def message_of(event: Event, total: int | None) -> tuple[str, str, dict[str, Any]] | None:
    fields = event.fields
    if event.event == "metric" and event.stage in STAGE_IDS:
        numbers = step_metrics(event)
        if "train_loss" not in numbers:
            return None
        steps = f"{event.step}/{total}" if total else str(event.step)
        return "info", f"Step {steps}: training loss={numbers['train_loss']:.2f}", {**numbers, "total_steps": total}
    if event.event == "state":
        state = State(fields["state"])
        message = fields.get("message") or ""
        level = "error" if state is State.FAILED else "info"
        return level, f"{STATE_MESSAGES[state]}{f': {message}' if message and state is State.FAILED else ''}", {}
    if event.event == "checkpoint" and event.stage in STAGE_IDS:
        return "info", f"Checkpoint created at step {event.step}", {"step": event.step}
    if event.event == "stage_finished" and event.stage:
        return "info", f"Stage {event.stage} finished in {float(fields.get('seconds') or 0):.0f} s", {}
    if event.event == "warning":
        return "warn", str(fields.get("message", "")), {}
    if event.event == "failed":
        return "error", str(fields.get("message", "")), {"code": str(fields.get("reason", ""))}
    return None


STEP_METRICS = (
    ("train_loss", "loss"),
    ("valid_loss", "eval_loss"),
    ("train_accuracy", "rewards/accuracies"),
    ("train_accuracy", "mean_token_accuracy"),
    ("valid_mean_token_accuracy", "eval_mean_token_accuracy"),
    ("train_mean_reward", "reward"),
    ("train_kl", "kl"),
    ("learning_rate", "learning_rate"),
)
"""OpenAI's names of what a step reports, and ours: the accuracy of `dpo` is the share of pairs in the right order, that
of supervised learning the share of the learnt tokens that the model found most probable."""


def step_metrics(event: Event) -> dict[str, Any]:
    """A training step's numbers under OpenAI's names."""
    metrics = event.fields.get("metrics")
    metrics = metrics if isinstance(metrics, Mapping) else {}
    numbers: dict[str, Any] = {"step": event.step}
    for theirs, ours in STEP_METRICS:
        value = metrics.get(ours)
        if isinstance(value, int | float):
            numbers[theirs] = float(value)
    return numbers


def file_object(file: File) -> dict[str, Any]:
    """A `file`."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes or 0,
        "created_at": int(file.created),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed" if file.state == READY else "uploaded",
        "status_details": None,
        "expires_at": None,
    }


def model_object(name: str, created: float, owner: str) -> dict[str, Any]:
    """A `model`."""
    return {"id": name, "object": "model", "created": int(created), "owned_by": owner}


def published_object(model: PublishedModel) -> dict[str, Any]:
    """A published model as a `model`."""
    return model_object(model.name, model.created, model.project)


COLUMNS = (
    "step",
    "train_loss",
    "train_accuracy",
    "valid_loss",
    "valid_mean_token_accuracy",
    "full_valid_loss",
    "full_valid_mean_token_accuracy",
)
"""Of `step_metrics.csv`; what is not measured stays empty."""
MORE_COLUMNS = {"dpo": ("valid_accuracy",), "reinforcement": ("train_mean_reward", "train_kl")}
"""Behind those, by method."""
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
        method = str(fresh.request.openai.get("method") or "supervised")
        files = _kept(service, job, table(lines, validation(service, fresh), MORE_COLUMNS.get(method, ())))
        return service.store.update_openai(job.id, {"trained_tokens": trained_tokens(lines), "result_files": files})
    finally:
        service.store.release(lease)


def _kept(service: Service, job: Job, text: str) -> list[str]:
    """The id of the file with the metrics; none when the project has no room left for it."""
    try:
        return [
            receive(
                service.store, service.settings, job.project, "step_metrics.csv", PURPOSE, io.BytesIO(text.encode())
            ).id
        ]
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


def validation(service: Service, job: Job) -> dict[str, float]:
    """What was measured on the validation file when training was over, by column.

    Of supervised learning the mean loss of a learnt token, which is the logarithm of the perplexity that the evaluate
    stage measured, and how often the model finds it most probable; of `dpo` the loss of a pair, and how often the
    better answer is the likelier one. The `full_` columns are told where every row was measured.
    """
    scores: dict[str, Any] = {}
    for result in service.store.stage_results(job.id):
        if result.stage == "dpo":
            scores = dict(result.metrics)
        elif isinstance(inner := result.metrics.get("supervised"), Mapping):
            scores = dict(inner)
    measured: dict[str, float] = {}
    perplexity, pairs = scores.get("perplexity"), scores.get("eval_rewards/nll")
    if isinstance(perplexity, int | float) and perplexity > 0:
        measured["valid_loss"] = math.log(perplexity)
        if isinstance(accuracy := scores.get("mean_token_accuracy"), int | float):
            measured["valid_mean_token_accuracy"] = float(accuracy)
        if _rows(service, job) <= VALIDATED:
            measured |= {f"full_{column}": value for column, value in measured.items()}
    if isinstance(pairs, int | float):
        measured["valid_loss"] = measured["full_valid_loss"] = float(pairs)
    if isinstance(accuracy := scores.get("eval_rewards/accuracies"), int | float):
        measured["valid_accuracy"] = float(accuracy)
    return measured


def _rows(service: Service, job: Job) -> float:
    """Rows of the validation file; without end where it is gone."""
    try:
        file = service.store.file(str(job.request.openai.get("validation_file")), job.project)
    except NotFound:
        return math.inf
    return float(file.openai.get("rows", math.inf))


def table(lines: dict[int, Event], validation: Mapping[str, float], more: tuple[str, ...] = ()) -> str:
    """`step_metrics.csv`; what was measured on the validation file stands with the last step."""
    text = io.StringIO()
    writer = csv.DictWriter(text, (*COLUMNS, *more), restval="", lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    rows = [step_metrics(event) for _, event in sorted(lines.items())]
    if rows:
        rows[-1] |= validation
    writer.writerows(rows)
    return text.getvalue()
