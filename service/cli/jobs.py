"""`finery jobs`, `logs` and the verbs that steer jobs: talk to a service about its work.

`pause`, `resume`, `cancel`, `retry`, `delete` and `hosts` are requests and their answers. `finery logs --follow` shows
the same live display as `finery run`, fed by the job's events; without a terminal, and with `--raw`, the console log.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipelines.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED
from service.cli.progress import RunProgress, choose_display
from service.client import Connection, find

STYLES = {
    "queued": "dim",
    "starting": "cyan",
    "running": "cyan",
    "recovering": "yellow",
    "pausing": "yellow",
    "paused": "yellow",
    "cancelling": "yellow",
    "cancelled": "dim",
    "succeeded": "green",
    "failed": "red",
}


def connect(server: str | None, token_file: Path | None) -> Connection:
    """A connection to the server that the command names. Raises CommandError."""
    return Connection(find(server, token_file))


def tell(data: object, as_json: bool, *lines: str) -> int:
    """Print the answer, as one JSON object or as lines. Returns the exit code 0."""
    if as_json:
        print(json.dumps(data, ensure_ascii=False))
    else:
        print("\n".join(lines))
    return 0


def say(sentence: str) -> None:
    """A sentence beside the answer."""
    print(sentence, file=sys.stderr)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], styles: Sequence[str | None] = ()) -> None:
    """Rows under a heading, as wide as what is in them; `styles` colours whole rows on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    grid = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    for name in columns:
        grid.add_column(name, overflow="fold", no_wrap=name in ("job", "id"))
    for number, row in enumerate(rows):
        style = styles[number] if number < len(styles) else None
        grid.add_row(*(Text(str(cell), style=style or "") for cell in row))
    console.print(grid)


def since(moment: str | None, now: datetime | None = None) -> str:
    """`3 s ago`, `12 min ago`, `2 h ago`, `5 d ago`; a dash for nothing."""
    if not moment:
        return "-"
    seconds = max(0, round(((now or datetime.now(UTC)) - datetime.fromisoformat(moment)).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def gigabytes(size: float) -> str:
    """Bytes as `1.5 GB`."""
    return f"{size / 1e9:.1f} GB"


PAGE = 500
DONE = {"pause": "pausing", "resume": "queued again", "cancel": "cancelling", "retry": "queued again"}


def jobs(
    states: Sequence[str], name: str | None, limit: int, server: str | None, token_file: Path | None, as_json: bool
) -> int:
    """List jobs, newest first. Returns the exit code."""
    jobs: list[dict[str, Any]] = []
    with connect(server, token_file) as connection:
        after = None
        while len(jobs) < limit:
            page = connection.get(
                "/jobs", state=list(states) or None, name=name, after=after, limit=min(PAGE, limit - len(jobs))
            )
            jobs += page["data"]
            after = page["next"]
            if after is None:
                break
    if as_json:
        print(json.dumps({"jobs": jobs, "more": after is not None}, ensure_ascii=False))
    elif not jobs:
        print("No jobs." if not states and not name else "No such jobs.")
    else:
        rows = [
            (job["id"], job["name"], job["state"], standing(job), job["priority"] or "", since(job["created"]))
            for job in jobs
        ]
        table(("job", "name", "state", "", "priority", "submitted"), rows, [STYLES.get(job["state"]) for job in jobs])
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
    answers = []
    with connect(server, token_file) as connection:
        for job_id in ids:
            answers.append(connection.post(f"/jobs/{quoted(job_id)}/{action}"))
    lines = [f"{job['id']}  {job['name']}  {job['state']}" for job in answers]
    return tell(answers[0] if len(answers) == 1 else {"jobs": answers}, as_json, *lines)


def delete(ids: Sequence[str], server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Have the service delete jobs that have ended. Returns the exit code."""
    with connect(server, token_file) as connection:
        for job_id in ids:
            connection.delete(f"/jobs/{quoted(job_id)}")
    return tell({"deleted": list(ids)}, as_json, *(f"{job_id}  deleted" for job_id in ids))


def hosts(server: str | None, token_file: Path | None, as_json: bool) -> int:
    """List the machines that run jobs. Returns the exit code."""
    with connect(server, token_file) as connection:
        answer = connection.get("/hosts")
    listed = answer["data"] if isinstance(answer, dict) else answer
    if as_json:
        print(json.dumps({"hosts": listed}, ensure_ascii=False))
    elif not listed:
        print("No host has reported yet.")
    else:
        rows = [
            (
                each["name"],
                each["executor"],
                each["state"],
                each["cpus"],
                gigabytes(each["memory"]),
                gpus_of(each),
                since(each["seen"]),
            )
            for each in listed
        ]
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
    return quote(identifier, safe="")


OUTCOMES = {"succeeded": EXIT_DONE, "failed": EXIT_FAILED, "cancelled": EXIT_STOPPED, "paused": EXIT_STOPPED}


def logs(job_id: str, follow: bool, raw: bool, server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Show a job's log, or follow it to its end. Returns the exit code: with `--follow` that of the job."""
    with connect(server, token_file) as connection:
        if not follow:
            return printed(connection, job_id, as_json)
        return echoed(connection, job_id, as_json) if raw else watch(connection, job_id, as_json)


def printed(connection: Connection, job_id: str, as_json: bool) -> int:
    """The console log so far, or with `--json` the events."""
    if as_json:
        after = 0
        while page := (answer := connection.get(f"/jobs/{quoted(job_id)}/events", after=after, limit=5000))["data"]:
            for event in page:
                print(json.dumps(event, ensure_ascii=False))
            after = answer["last"]
        return EXIT_DONE
    text = connection.text(f"/jobs/{quoted(job_id)}/logs")
    sys.stdout.write(text if not text or text.endswith("\n") else f"{text}\n")
    return EXIT_DONE


def echoed(connection: Connection, job_id: str, as_json: bool) -> int:
    """The console log as it grows."""
    for piece in connection.stream(f"/jobs/{quoted(job_id)}/logs"):
        sys.stdout.write(json.dumps(piece, ensure_ascii=False) + "\n" if as_json else str(piece.get("text", "")))
        sys.stdout.flush()
    return ended(connection, job_id)


def watch(connection: Connection, job_id: str, as_json: bool) -> int:
    """Follow a job's events to its end. Ctrl-C stops looking; the job goes on."""
    progress = RunProgress([])
    try:
        if as_json:
            for event in connection.stream(f"/jobs/{quoted(job_id)}/events"):
                print(json.dumps(event, ensure_ascii=False), flush=True)
        else:
            state = None
            with choose_display(False) as display:
                for event in connection.stream(f"/jobs/{quoted(job_id)}/events"):
                    if event.get("event") == "state":
                        if event.get("state") != state and event.get("state") not in ("running", "succeeded"):
                            display.say(
                                " ".join(str(part) for part in (event.get("state"), event.get("message")) if part)
                            )
                        state = event.get("state")
                    elif event.get("event") in ("failed", "stopped"):  # a state follows, which knows what became of it
                        progress.break_off("failed" if event["event"] == "failed" else "stopped")
                    else:
                        progress.apply(event)
                    display.update(progress)
    except KeyboardInterrupt:
        say(f"\nNo longer looking; the job goes on. finery cancel {job_id} stops it.")
        return EXIT_STOPPED
    return ended(connection, job_id, None if as_json else print)


def ended(connection: Connection, job_id: str, show: Any = None) -> int:
    """The exit code of what became of a job."""
    job = connection.get(f"/jobs/{quoted(job_id)}")
    if show is not None:
        show(f"{job['id']}  {job['name']}  {job['state']}  {standing(job)}".rstrip())
    return OUTCOMES.get(job["state"], EXIT_DONE)
