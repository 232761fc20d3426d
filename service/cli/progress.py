"""How far a run is: what its events say, and how a terminal or a log shows it.

`Progress.apply` takes one event after the other; everything shown to the user is read from the result. Times come
from the events themselves, so the same events always give the same state. It is shown live on a terminal, as plain
lines anywhere else, or not at all. One line a stage:

    ✓ pretrain    1:12    loss 4.21
    ● mrpc        ━━━━━━━━━━━━╸━━━━━━━  320/690  loss 0.512  14.2 steps/s  0:26 left
    · evaluate    queued
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

from pipelines.core.results import EVALUATIONS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


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
    """What is being counted (`examples`), or what is being done while nothing is counted (`packing text`); empty
    for steps."""
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


class RunProgress:
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
            stages = list(self.stages.items())
            before = [each for each in stages if each[1].status != "queued"]
            self.stages = dict([*before, (id, StageProgress(id)), *stages[len(before) :]])
        return self.stages[id]

    def _start(self, stage: StageProgress, time: datetime | None) -> None:
        self.preparing = None
        stage.status, stage.began, stage.step, stage.total = "running", time, None, None
        stage._positions.clear()

    def _end(
        self,
        kind: Literal["failed", "stopped"],
        event: Mapping[str, Any],
        stage: StageProgress | None,
        time: datetime | None,
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


PLAIN_SECONDS = 10.0
"""Between two plain lines about the same stage: enough to see that it lives, few enough for a log."""
SCORES_SHOWN = 3
UNNAMED = ("", "step", "steps", "resumed")
"""What is counted needs no name when it is training steps."""


class Display(Protocol):
    """Where progress is shown."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *exception: object) -> None: ...

    def update(self, progress: RunProgress) -> None:
        """Show how far the run is now. Called several times a second."""

    def say(self, message: str) -> None:
        """Show a sentence."""


class NoDisplay:
    """Shows nothing."""

    def __enter__(self) -> NoDisplay:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, progress: RunProgress) -> None:
        """Nothing."""

    def say(self, message: str) -> None:
        """Nothing."""


class PlainLines:
    """A line when a stage begins, every ten seconds while it runs, and when it ends."""

    def __init__(self, out: TextIO, clock: Any = time.monotonic) -> None:
        self.out = out
        self.clock = clock
        self._said: dict[str, str] = {}
        self._last = -PLAIN_SECONDS
        self._warnings = 0

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, progress: RunProgress) -> None:
        """Print what is new."""
        for warning in progress.warnings[self._warnings :]:
            self.say(f"warning: {warning}")
        self._warnings = len(progress.warnings)
        if progress.preparing is not None:
            self._moving("", progress.preparing)
        for stage in progress.stages.values():
            if stage.status == "running":
                if self._said.get(stage.id) != "running":
                    self._said[stage.id] = "running"
                    self._last = self.clock()
                    self.say(f"{stage.id}: started")
                else:
                    self._moving(stage.id, stage)
            elif stage.status != "queued" and self._said.get(stage.id) != stage.status:
                self._said[stage.id] = stage.status
                self.say(f"{stage.id}: {', '.join(ended(stage))}")

    def say(self, message: str) -> None:
        """One line."""
        print(message, file=self.out, flush=True)

    def _moving(self, name: str, stage: StageProgress) -> None:
        if self.clock() - self._last >= PLAIN_SECONDS and stage.step is not None:
            self._last = self.clock()
            parts = [counted(stage), *moving(stage)]
            self.say(f"{name}: {', '.join(parts)}" if name else ", ".join(parts))


class RunOnTerminal:
    """Redraws one line a stage, eight times a second."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self.console = console
        self._progress = RunProgress([])
        self._warnings = 0
        self._live = Live(
            console=console,
            get_renderable=lambda: render(self._progress, unicode=_unicode(console)),
            refresh_per_second=8,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> RunOnTerminal:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def update(self, progress: RunProgress) -> None:
        """Remember the state; the next redraw shows it."""
        self._progress = progress
        for warning in progress.warnings[self._warnings :]:
            self.say(f"warning: {warning}")
        self._warnings = len(progress.warnings)

    def say(self, message: str) -> None:
        """A line above the stages, which stays."""
        style = "yellow" if message.startswith("warning: ") else "bold"
        self.console.print(message, style=style, markup=False, highlight=False)


def choose_display(silent: bool) -> Display:
    """Live where someone looks at it, lines where they are kept."""
    if silent:
        return NoDisplay()
    if not sys.stderr.isatty():
        return PlainLines(sys.stderr)
    from rich.console import Console

    console = Console(stderr=True)
    return RunOnTerminal(console) if console.is_terminal and not console.is_dumb_terminal else PlainLines(sys.stderr)


SIGNS = {"queued": "·", "running": "●", "done": "✓", "reused": "✓", "failed": "✗", "stopped": "■"}
ASCII_SIGNS = {"queued": ".", "running": ">", "done": "+", "reused": "+", "failed": "x", "stopped": "#"}
STYLES = {"queued": "dim", "running": "cyan", "done": "green", "reused": "green", "failed": "red", "stopped": "yellow"}


def render(progress: RunProgress, unicode: bool = True) -> Table:
    """The stages as a grid: sign, name, and a bar or what came out."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2), pad_edge=False)
    grid.add_column(width=2, justify="right", no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=28)
    grid.add_column(no_wrap=True, overflow="ellipsis", min_width=10, max_width=44)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    stages = list(progress.stages.values())
    if progress.preparing is not None:
        position = next((n for n, stage in enumerate(stages) if stage.status == "queued"), len(stages))
        stages.insert(position, progress.preparing)
    signs = SIGNS if unicode else ASCII_SIGNS
    idle = progress.outcome is None and all(stage.status not in ("running", "failed", "stopped") for stage in stages)
    coming = next((stage for stage in stages if stage.status == "queued"), None) if idle else None
    for stage in stages:
        sign = Text(signs[stage.status], style=STYLES[stage.status])
        name = Text(
            stage.id or "preparing",
            style="dim" if stage.status == "queued" else "bold" if stage.status == "running" else "",
        )
        if stage is coming:  # its libraries load, its data is fingerprinted
            grid.add_row(Text(signs["running"], style="dim"), name, Text("starting", style="dim"), Text(""))
        elif stage.status == "queued":
            grid.add_row(sign, name, Text("queued", style="dim"), Text(""))
        elif stage.status == "running" and stage.fraction is not None:
            bar = ProgressBar(total=1.0, completed=stage.fraction, width=24)
            grid.add_row(sign, name, bar, Text("  ".join([counted(stage), *moving(stage)])))
        elif stage.status == "running":
            grid.add_row(sign, name, Text(counted(stage) or "starting"), Text("  ".join(moving(stage)), style="dim"))
        else:
            first, *rest = ended(stage)
            grid.add_row(
                sign,
                name,
                Text(first, style="" if stage.status in ("done", "reused") else STYLES[stage.status]),
                Text("  ".join(rest)),
            )
    return grid


def counted(stage: StageProgress) -> str:
    """`320/690`, with what is counted when it is not steps."""
    what = "" if stage.what in UNNAMED else stage.what
    if stage.step is None:
        return what
    count = f"{stage.step:,}/{stage.total:,}" if stage.total else f"{stage.step:,}"
    return f"{count} {what}".rstrip()


def moving(stage: StageProgress) -> list[str]:
    """Loss, speed and time left of a stage that runs."""
    parts = []
    if stage.loss is not None:
        parts.append(f"loss {number(stage.loss)}")
    if stage.speed is not None:
        unit = " steps/s" if stage.what in UNNAMED else "/s"
        parts.append(f"{stage.speed:,.0f}{unit}" if stage.speed >= 20 else f"{stage.speed:.2g}{unit}")
    if stage.remaining is not None:
        parts.append(f"{duration(stage.remaining)} left")
    return parts


def ended(stage: StageProgress) -> list[str]:
    """How a stage ended: its time first, then what is worth knowing of its numbers."""
    if stage.status == "reused":
        first = "reused"
    elif stage.status == "done":
        first = f"done in {duration(stage.seconds)}" if stage.seconds is not None else "done"
    else:
        first = stage.status
        if stage.checkpoint is not None:
            first += f", saved at step {stage.checkpoint:,}"
        elif stage.step is not None:
            first += f" at {counted(stage)}"
    if stage.status in ("failed", "stopped"):
        return [first]
    return [first, *(scores(stage.metrics) if stage.kind in EVALUATIONS else losses(stage.metrics))]


def scores(metrics: Mapping[str, Any]) -> list[str]:
    """`glue/mrpc accuracy 0.846 f1 0.893` of an evaluation, whose metrics are named `glue/mrpc.f1`."""
    by_benchmark: dict[str, list[str]] = {}
    for name, value in metrics.items():
        benchmark, dot, metric = name.rpartition(".")
        if dot and _is_number(value):
            by_benchmark.setdefault(benchmark, []).append(f"{metric} {number(value)}")
    return [" ".join([name, *numbers[:SCORES_SHOWN]]) for name, numbers in by_benchmark.items()]


def losses(metrics: Mapping[str, Any]) -> list[str]:
    """The last loss of a training stage."""
    loss = metrics.get("train_loss", metrics.get("loss"))
    return [f"loss {number(loss)}"] if _is_number(loss) else []


def number(value: float) -> str:
    """Three digits that matter: `0.846`, `4.21`, `87.3`; never an exponent for what a score or a loss can be."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if abs(value) >= 100:
        return f"{value:,.1f}"
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unicode(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")
