"""`finery jobs`, `pause`, `resume`, `cancel`, `retry`, `delete`, `hosts`: look at a service's jobs and steer them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.cli.talking import STYLES, connect, gigabytes, since, table, tell

PAGE = 500
DONE = {"pause": "pausing", "resume": "queued again", "cancel": "cancelling", "retry": "queued again"}


def jobs(states: Sequence[str], name: str | None, limit: int, server: str | None, token_file: Path | None, as_json: bool) -> int:
    """List jobs, newest first. Returns the exit code."""
    found: list[dict[str, Any]] = []
    with connect(server, token_file) as connection:
        after = None
        while len(found) < limit:
            page = connection.get("/jobs", state=list(states) or None, name=name, after=after, limit=min(PAGE, limit - len(found)))
            found += page["data"]
            after = page["next"]
            if after is None:
                break
    if as_json:
        print(json.dumps({"jobs": found, "more": after is not None}, ensure_ascii=False))
    elif not found:
        print("No jobs." if not states and not name else "No such jobs.")
    else:
        rows = [(job["id"], job["name"], job["state"], standing(job), job["priority"] or "", since(job["created"])) for job in found]
        table(("job", "name", "state", "", "priority", "submitted"), rows, [STYLES.get(job["state"]) for job in found])
        if after is not None:
            print(f"… and more: --limit {limit * 2}")
    return 0


def standing(job: dict[str, Any]) -> str:
    """Where a job stands, in a few words."""
    if job["state"] == "failed":
        return f"{job['reason']}: {job['message']}" if job["message"] else str(job["reason"] or "")
    progress = job["progress"] or {}
    parts = [str(progress["stage"])] if progress.get("stage") else []
    if progress.get("total"):
        parts.append(f"{progress.get('step', 0)}/{progress['total']}")
    if isinstance(progress.get("loss"), int | float):
        parts.append(f"loss {progress['loss']:.3g}")
    return " ".join(parts) if job["state"] in ("running", "pausing", "paused", "recovering") else ""


def steer(action: str, ids: Sequence[str], server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Ask the service to `pause`, `resume`, `cancel` or `retry` jobs. Returns the exit code."""
    told = []
    with connect(server, token_file) as connection:
        for job_id in ids:
            told.append(connection.post(f"/jobs/{quoted(job_id)}/{action}"))
    lines = [f"{job['id']}  {job['name']}  {job['state']}" for job in told]
    return tell(told[0] if len(told) == 1 else {"jobs": told}, as_json, *lines)


def delete(ids: Sequence[str], server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Have the service delete jobs that have ended. Returns the exit code."""
    with connect(server, token_file) as connection:
        for job_id in ids:
            connection.delete(f"/jobs/{quoted(job_id)}")
    return tell({"deleted": list(ids)}, as_json, *(f"{job_id}  deleted" for job_id in ids))


def hosts(server: str | None, token_file: Path | None, as_json: bool) -> int:
    """List the machines that run jobs. Returns the exit code."""
    with connect(server, token_file) as connection:
        found = connection.get("/hosts")
    listed = found["data"] if isinstance(found, dict) else found
    if as_json:
        print(json.dumps({"hosts": listed}, ensure_ascii=False))
    elif not listed:
        print("No host has reported yet.")
    else:
        rows = [(each["name"], each["executor"], each["state"], each["cpus"], gigabytes(each["memory"]), gpus_of(each), since(each["seen"])) for each in listed]
        table(("host", "executor", "state", "cores", "memory", "GPUs", "seen"), rows)
    return 0


def gpus_of(host: dict[str, Any]) -> str:
    """`2 of 8 NVIDIA H200 in use`, or `none`."""
    gpus = host["gpus"]
    if not gpus:
        return "none"
    kinds = ", ".join(dict.fromkeys(gpu["kind"] for gpu in gpus))
    return f"{sum(gpu['attempt'] is not None for gpu in gpus)} of {len(gpus)} {kinds} in use"


def quoted(identifier: str) -> str:
    """An id as part of a path."""
    from urllib.parse import quote

    return quote(identifier, safe="")
