"""How an attempt ended, in words: from what the executor saw and what the run said last, to a reason and a sentence."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.errors import EXIT_DONE, EXIT_STOPPED, EXIT_USAGE
from service.executors.protocol import Exited
from service.jobs.states import Reason

SAID: dict[str, Reason] = {
    "bad_recipe": Reason.BAD_RECIPE,
    "misfit": Reason.BAD_RECIPE,
    "model_error": Reason.BAD_RECIPE,
    "publish_error": Reason.BAD_RECIPE,
    "data_error": Reason.DATA_ERROR,
    "diverged": Reason.DIVERGED,
    "out_of_memory": Reason.OUT_OF_MEMORY,
    "process_lost": Reason.NODE_LOST,
    "disk_full": Reason.INTERNAL,
    "busy": Reason.INTERNAL,
    "internal": Reason.INTERNAL,
}
"""The reason in a `failed` event (pipelines/errors.py) -> the job's. What the same recipe would meet again is not tried again."""


@dataclass(frozen=True)
class Outcome:
    """What the store is told."""

    exit_code: int | None
    reason: Reason | None = None
    message: str = ""


def outcome_of(ended: Exited, last: Mapping[str, Any] | None, console: str) -> Outcome:
    """`last` is the attempt's newest `failed` or `stopped` event; `console` the end of what it printed."""
    if ended.code == EXIT_DONE:
        return Outcome(EXIT_DONE)
    said_nothing_better = ended.code < 0 or last is None or last.get("reason") in ("process_lost", "internal")
    if ended.reason == "out_of_memory" and said_nothing_better:
        return Outcome(ended.code, Reason.OUT_OF_MEMORY, "the kernel ended it because memory ran out; a smaller batch needs less")
    if ended.code == EXIT_STOPPED or (ended.code < 0 and ended.asked):
        return Outcome(EXIT_STOPPED, None, "stopped; what was done is saved")
    if ended.code == EXIT_USAGE:
        return Outcome(EXIT_USAGE, Reason.BAD_RECIPE, said(console) or "the recipe was refused")
    if ended.code < 0:
        return Outcome(ended.code, *killed(-ended.code, console))
    if last is not None and last.get("event") == "failed":
        return Outcome(ended.code, SAID.get(str(last.get("reason")), Reason.INTERNAL), str(last.get("message", "")))
    return Outcome(ended.code, Reason.INTERNAL, said(console) or f"it ended with exit code {ended.code} and without a word")


def killed(number: int, console: str) -> tuple[Reason, str]:
    """A signal that nobody here sent: SIGKILL and SIGTERM come from outside, the others from a library that crashed."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return Reason.NODE_LOST, f"it was ended from outside by {name}"
    return Reason.INTERNAL, f"it crashed with {name}{': ' + said(console) if said(console) else ''}"


def said(console: str) -> str:
    """The last sentence that the command printed: its own, which begin with `finery: `, or else the last line."""
    lines = [line.rstrip().rpartition("\r")[2] for line in console.split("\n")]
    lines = [line for line in lines if line.strip()]
    own = [place for place, line in enumerate(lines) if line.startswith("finery: ")]
    if own:
        return "\n".join(lines[own[-1] :]).removeprefix("finery: ")[:2000]
    mistakes = [line for line in lines if ".yaml:" in line]
    return "\n".join(mistakes)[:4000] if mistakes else lines[-1][:500] if lines else ""
