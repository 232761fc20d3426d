"""What ends an attempt that does not end by itself: the time that its job may run, and silence.

A job's time is that of all its attempts since it was submitted or last retried by a user; what it waits in the queue
does not count. An attempt is silent when for `stall_seconds` it printed nothing, wrote no event, and none of its ranks
finished a step. Then the rank whose process shows no sign of life is named, if there is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.attempts.folders import Folders
from service.jobs.job import Attempt, Job
from service.jobs.states import Reason
from service.settings import Settings

HEARTBEATS = "heartbeats"
"""In the run folder: `RANK` is touched every few seconds by a rank's process, `RANK.step` by its steps (pipelines/ranks.py)."""
ALIVE_SECONDS = 60.0
"""A process that was not heard of for so long while others were is the silent one."""


@dataclass(frozen=True)
class Limit:
    """Why an attempt is to be stopped."""

    reason: Reason
    message: str


def longest(job: Job, settings: Settings) -> float | None:
    """How many seconds a job may run: what it asked for, and no more than the server allows."""
    given = [each for each in (job.request.max_seconds, settings.max_seconds) if each is not None]
    return min(given, default=None)


def seconds_run(job: Job, attempts: Sequence[Attempt], now: float) -> float:
    """How long a job's attempts ran since it was submitted or retried."""
    counted = [each for each in attempts if each.number > job.attempts_before_retry and each.started is not None]
    return sum(max(0.0, (now if each.ended is None else each.ended) - (each.started or 0.0)) for each in counted)


def over_time(job: Job, attempts: Sequence[Attempt], settings: Settings, now: float) -> Limit | None:
    """The limit that a job has reached."""
    most = longest(job, settings)
    if most is None or seconds_run(job, attempts, now) < most:
        return None
    return Limit(Reason.TIME_LIMIT, f"it ran for the {most:g} s that it may run; its last checkpoint is kept, and a retry goes on from there")


def silent(attempt: Attempt, folders: Folders, record: Path, settings: Settings, now: float) -> Limit | None:
    """Whether nothing was heard of an attempt for too long."""
    began = attempt.started or attempt.created
    if not settings.stall_seconds or now - began < settings.stall_seconds:
        return None
    beats = dict(_changed(folders.run / HEARTBEATS, began))
    signs = [began, *(moment for path, moment in beats.items() if path.suffix == ".step"), *(moment for _, moment in _changed(record / "console", began))]
    signs += [_moment(folders.events) or began]
    silence = now - max(min(sign, now) for sign in signs)
    if silence < settings.stall_seconds:
        return None
    alive = {path.name: moment for path, moment in beats.items() if path.name.isdecimal() and len(path.name) < 6}
    quiet = [rank for rank, moment in sorted(alive.items(), key=lambda each: each[1]) if now - moment >= min(ALIVE_SECONDS, settings.stall_seconds)]
    if quiet and len(quiet) < len(alive):
        who = f"rank {quiet[0]} has been silent for {now - alive[quiet[0]]:.0f} s, and nothing moved for {silence:.0f} s"
    else:
        who = f"it has been silent for {silence:.0f} s: no event, no output and no step"
    return Limit(Reason.STALLED, f"{who}; it is stopped (FINERY_STALL_SECONDS is {settings.stall_seconds:g})")


def _changed(folder: Path, since: float) -> Iterator[tuple[Path, float]]:
    """The files of a folder that were touched since then, and when."""
    try:
        with os.scandir(folder) as entries:
            found = [(Path(entry.path), entry.stat(follow_symlinks=False).st_mtime) for entry, _ in zip(entries, range(10_000), strict=False)]
    except OSError:
        return
    yield from (each for each in found if each[1] >= since - 1.0)


def _moment(path: Path) -> float | None:
    try:
        return path.lstat().st_mtime
    except OSError:
        return None
