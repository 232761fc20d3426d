"""`finery logs`: what a job prints and does, as it happens.

`--follow` shows the same live display as `finery run`, fed by the job's events; without a terminal, and with `--raw`, the console log.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED
from service.cli.jobs import quoted, standing
from service.cli.progress import Progress
from service.cli.run import choose_display
from service.cli.talking import connect, say

if TYPE_CHECKING:
    from service.client.connection import Connection

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
        while page := (told := connection.get(f"/jobs/{quoted(job_id)}/events", after=after, limit=5000))["data"]:
            for event in page:
                print(json.dumps(event, ensure_ascii=False))
            after = told["last"]
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
    progress = Progress([])
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
                            display.say(" ".join(str(part) for part in (event.get("state"), event.get("message")) if part))
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
