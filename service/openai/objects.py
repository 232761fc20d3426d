"""Jobs, events, files and models as OpenAI's objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.api.documents import finite
from service.jobs.job import Event, Job
from service.jobs.states import State
from service.openai.methods import STAGE_IDS
from service.safety.secrets import Redactor
from service.store.files import READY, File
from service.store.results import Model

STATUS = {
    State.QUEUED: "queued", State.STARTING: "queued", State.RUNNING: "running", State.RECOVERING: "running", State.PAUSING: "running",
    State.PAUSED: "paused", State.CANCELLING: "cancelled", State.CANCELLED: "cancelled", State.SUCCEEDED: "succeeded", State.FAILED: "failed",
}  # fmt: skip
"""Our states in OpenAI's words. `validating_files` never occurs: files are checked before a job is made."""
TOLD_STATES = {
    State.QUEUED: "The job waits for resources", State.STARTING: "The job starts", State.RUNNING: "Fine-tuning job started",
    State.RECOVERING: "The job is moved and goes on from its last checkpoint", State.PAUSING: "The job is being paused", State.PAUSED: "The job is paused",
    State.CANCELLING: "The job is being cancelled", State.CANCELLED: "The job was cancelled", State.SUCCEEDED: "The job has successfully completed",
    State.FAILED: "The job failed",
}  # fmt: skip


def job_id_of(identifier: str) -> str:
    """`job-…` of `ftjob-…`; anything else stays, and will not be found."""
    return identifier.removeprefix("ft") if identifier.startswith("ftjob-") else f"?{identifier}"


def public_id(job: Job) -> str:
    """`ftjob-…` of `job-…`."""
    return f"ft{job.id}"


def job_object(job: Job, redactor: Redactor) -> dict[str, Any]:
    """A `fine_tuning.job`."""
    kept = job.request.openai
    every = kept.get("hyperparameters", {})
    numbers = {key: every.get(key) for key in ("n_epochs", "batch_size", "learning_rate_multiplier")}
    method = str(kept.get("method") or "supervised")
    settings = {"hyperparameters": dict(every) if method == "dpo" else numbers, **({"grader": kept["grader"]} if "grader" in kept else {})}
    succeeded = job.state is State.SUCCEEDED
    failed = job.state is State.FAILED
    code = str(job.reason or "internal")
    return {
        "id": public_id(job), "object": "fine_tuning.job", "created_at": int(job.created), "finished_at": int(job.finished) if job.finished else None,
        "model": kept.get("model"), "fine_tuned_model": kept.get("fine_tuned_model") if succeeded else None, "organization_id": job.project,
        "status": STATUS[job.state], "training_file": kept.get("training_file"), "validation_file": kept.get("validation_file"),
        "result_files": list(kept.get("result_files", ())) if succeeded else [], "trained_tokens": kept.get("trained_tokens") if succeeded else None,
        "hyperparameters": numbers, "method": {"type": method, method: settings}, "seed": kept.get("seed", 0),
        "error": {"code": code, "message": redactor.text(job.message) or code, "param": "training_file" if code == "data_error" else None} if failed else None,
        "estimated_finish": None, "integrations": [], "metadata": kept.get("metadata") or {}, "suffix": kept.get("suffix"),
    }  # fmt: skip


def event_object(job: Job, event: Event, total: int | None, redactor: Redactor) -> dict[str, Any] | None:
    """A `fine_tuning.job.event`, or None for events that say nothing to this surface."""
    told = _told(event, total)
    if told is None:
        return None
    level, message, data = told
    kind = "metrics" if event.event == "metric" else "message"
    return {
        "object": "fine_tuning.job.event", "id": f"ftevent-{job.id.removeprefix('job-')}-{event.id}", "created_at": int(event.time), "level": level,
        "message": redactor.text(message), "type": kind, "data": redactor.plain(finite(data)),
    }  # fmt: skip


def _told(event: Event, total: int | None) -> tuple[str, str, dict[str, Any]] | None:
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
        return level, f"{TOLD_STATES[state]}{f': {message}' if message and state is State.FAILED else ''}", {}
    if event.event == "checkpoint" and event.stage in STAGE_IDS:
        return "info", f"Checkpoint created at step {event.step}", {"step": event.step}
    if event.event == "stage_finished" and event.stage:
        return "info", f"Stage {event.stage} finished in {float(fields.get('seconds') or 0):.0f} s", {}
    if event.event == "warning":
        return "warn", str(fields.get("message", "")), {}
    if event.event == "failed":
        return "error", str(fields.get("message", "")), {"code": str(fields.get("reason", ""))}
    return None


def step_metrics(event: Event) -> dict[str, Any]:
    """A training step's numbers under OpenAI's names."""
    metrics = event.fields.get("metrics")
    metrics = metrics if isinstance(metrics, Mapping) else {}
    found: dict[str, Any] = {"step": event.step}
    for theirs, ours in (("train_loss", "loss"), ("valid_loss", "eval_loss"), ("learning_rate", "learning_rate")):
        value = metrics.get(ours)
        if isinstance(value, int | float):
            found[theirs] = float(value)
    return found


def file_object(file: File) -> dict[str, Any]:
    """A `file`."""
    return {
        "id": file.id, "object": "file", "bytes": file.bytes or 0, "created_at": int(file.created), "filename": file.filename, "purpose": file.purpose,
        "status": "processed" if file.state == READY else "uploaded", "status_details": None, "expires_at": None,
    }  # fmt: skip


def model_object(name: str, created: float, owner: str) -> dict[str, Any]:
    """A `model`."""
    return {"id": name, "object": "model", "created": int(created), "owned_by": owner}


def published_object(model: Model) -> dict[str, Any]:
    """A published model as a `model`."""
    return model_object(model.name, model.created, model.project)
