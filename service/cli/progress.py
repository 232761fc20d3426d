"""How far a run is: what its events say, put together. Knows nothing of a terminal.

`Progress.apply` takes one event after the other; everything shown to the user is read from the result. Times come
from the events themselves, so the same events always give the same state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Status = Literal["queued", "running", "done", "reused", "failed", "stopped"]
SPEED_WINDOW = 20
"""Positions that the speed is taken over: long enough to be calm, short enough to follow a change of pace."""


@dataclass
class StageProgress:
    """One stage of a run."""

    id: str
    kind: str = ""
    status: Status = "queued"
    what: str = ""
    """What is being counted (`examples`), or what is being done while nothing is counted (`packing text`); empty for steps."""
    step: int | None = None
    total: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    """The newest numbers of a training step; of a finished stage, its own."""
    seconds: float | None = None
    """How long the stage took, once it has ended."""
    checkpoint: int | None = None
    """Step of the newest complete checkpoint."""
    began: datetime | None = None
    latest: datetime | None = None
    _positions: deque[tuple[datetime, int]] = field(default_factory=lambda: deque(maxlen=SPEED_WINDOW))
    _progress_told: bool = False

    @property
    def loss(self) -> float | None:
        """The newest training loss, also one that is no longer finite."""
        value = self.metrics.get("loss", self.metrics.get("train_loss"))
        try:
            return None if value is None else float(value)
        except (TypeError, ValueError):
            return None

    @property
    def speed(self) -> float | None:
        """Positions a second over the last few reports."""
        if len(self._positions) < 2:
            return None
        (first_time, first), (last_time, last) = self._positions[0], self._positions[-1]
        seconds = (last_time - first_time).total_seconds()
        return (last - first) / seconds if seconds > 0 and last > first else None

    @property
    def remaining(self) -> float | None:
        """Seconds that the rest takes at this speed."""
        if self.speed is None or self.total is None or self.step is None:
            return None
        return max(0, self.total - self.step) / self.speed

    @property
    def fraction(self) -> float | None:
        """How much is done, 0 to 1."""
        if not self.total or self.step is None:
            return None
        return min(1.0, self.step / self.total)

    def move(self, time: datetime, event: Mapping[str, Any]) -> None:
        """Take the position of a `progress` event; of a `metric` event where a stage sends no other."""
        if event.get("event") == "progress":
            self._progress_told = True
        elif self._progress_told:
            return
        what, step, total = str(event.get("what") or ""), _whole(event.get("step")), _whole(event.get("total"))
        if step is None:
            self.what = what or self.what
            return
        if what != self.what or (self.step is not None and step < self.step):
            self._positions.clear()  # another thing is counted now: its speed has nothing to do with the last one's
            self.total = None
        self.what, self.step = what, step
        self.total = self.total if total is None else total
        if not self._positions or self._positions[-1][1] != step:
            self._positions.append((time, step))


class Progress:
    """A run, as its events tell it so far."""

    def __init__(self, stages: Iterable[tuple[str, str]]) -> None:
        self.stages: dict[str, StageProgress] = {id: StageProgress(id, kind) for id, kind in stages}
        self.preparing: StageProgress | None = None
        """Work that belongs to no stage, such as training the tokenizer, while it goes on."""
        self.began: datetime | None = None
        self.seconds: float | None = None
        self.outcome: Literal["finished", "failed", "stopped"] | None = None
        self.message = ""
        """Why it failed or stopped, in one sentence."""
        self.reason = ""
        self.failed_stage: str | None = None
        self.warnings: list[str] = []

    @property
    def current(self) -> StageProgress | None:
        """The stage that is running."""
        return next((stage for stage in self.stages.values() if stage.status == "running"), None)

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take one event in. Unknown kinds and missing fields are passed over: a newer run may say more."""
        kind, time = event.get("event"), _time(event.get("time"))
        if time is not None and self.began is None:
            self.began = time
        stage = self._stage(event.get("stage"))
        if stage is not None and time is not None:
            stage.latest = time
        if kind == "started" and stage is not None:
            self._start(stage, time)
        elif kind in ("progress", "metric") and time is not None:
            if stage is None:
                if kind == "progress":
                    self.preparing = self.preparing or StageProgress("", status="running", began=time)
                    self.preparing.move(time, event)
                return
            if stage.status == "queued":
                self._start(stage, time)
            stage.move(time, event)
            if isinstance(event.get("metrics"), Mapping):
                stage.metrics |= event["metrics"]
        elif kind == "checkpoint" and stage is not None:
            stage.checkpoint = _whole(event.get("step"))
        elif kind == "stage_finished" and stage is not None:
            stage.status = "reused" if event.get("reused") else "done"
            stage.seconds = _number(event.get("seconds"))
            if isinstance(event.get("metrics"), Mapping):
                stage.metrics = dict(event["metrics"])
        elif kind == "warning":
            self.warnings.append(str(event.get("message", "")))
        elif kind in ("failed", "stopped"):
            self._end(kind, event, stage, time)
        elif kind == "finished":
            self.outcome, self.preparing = "finished", None
            self.seconds = _number(event.get("seconds"))

    def break_off(self, status: Literal["failed", "stopped"]) -> None:
        """The run has ended without saying how: what was running is no longer running."""
        self.preparing = None
        if self.current is not None:
            if status == "failed":
                self.failed_stage = self.current.id
            self.current.status = status

    def _stage(self, id: Any) -> StageProgress | None:
        if not isinstance(id, str) or not id:
            return None
        if id not in self.stages:  # not in the recipe, but the run says so: shown where it happens
            known = list(self.stages.items())
            before = [each for each in known if each[1].status != "queued"]
            self.stages = dict([*before, (id, StageProgress(id)), *known[len(before) :]])
        return self.stages[id]

    def _start(self, stage: StageProgress, time: datetime | None) -> None:
        self.preparing = None
        stage.status, stage.began, stage.step, stage.total = "running", time, None, None
        stage._positions.clear()

    def _end(
        self, kind: Literal["failed", "stopped"], event: Mapping[str, Any], stage: StageProgress | None, time: datetime | None
    ) -> None:
        self.outcome, self.preparing = kind, None
        self.message, self.reason = str(event.get("message", "")), str(event.get("reason", ""))
        stage = stage or self.current
        if stage is not None:
            stage.status = kind
            self.failed_stage = stage.id if kind == "failed" else None
            if stage.began is not None and time is not None:
                stage.seconds = (time - stage.began).total_seconds()


def duration(seconds: float) -> str:
    """`0.4 s`, `42 s`, `3:07`, `2:05:09`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _time(value: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
