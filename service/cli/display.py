"""Show the progress of a run: live on a terminal, as plain lines anywhere else, or not at all.

One line a stage:

    ✓ pretrain    1:12    loss 4.21
    ● mrpc        ━━━━━━━━━━━━╸━━━━━━━  320/690  loss 0.512  14.2 steps/s  0:26 left
    · evaluate    queued
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from service.cli.progress import Progress, StageProgress, duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PLAIN_SECONDS = 10.0
"""Between two plain lines about the same stage: enough to see that it lives, few enough for a log."""
SCORES_SHOWN = 3
UNNAMED = ("", "step", "steps", "resumed")
"""What is counted needs no name when it is training steps."""


class Display(Protocol):
    """Where progress is shown."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *exception: object) -> None: ...

    def update(self, progress: Progress) -> None:
        """Show how far the run is now. Called several times a second."""

    def say(self, message: str) -> None:
        """Show a sentence."""


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, progress: Progress) -> None:
        """Nothing."""

    def say(self, message: str) -> None:
        """Nothing."""


class Plain:
    """A line when a stage begins, every ten seconds while it runs, and when it ends."""

    def __init__(self, out: TextIO, clock: Any = time.monotonic) -> None:
        self.out = out
        self.clock = clock
        self._said: dict[str, str] = {}
        self._last = -PLAIN_SECONDS
        self._warnings = 0

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, progress: Progress) -> None:
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


class OnTerminal:
    """Redraws one line a stage, eight times a second."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self.console = console
        self._progress = Progress([])
        self._warnings = 0
        self._live = Live(
            console=console, get_renderable=lambda: render(self._progress, unicode=_unicode(console)), refresh_per_second=8,
            redirect_stdout=False, redirect_stderr=False,
        )

    def __enter__(self) -> OnTerminal:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def update(self, progress: Progress) -> None:
        """Remember the state; the next redraw shows it."""
        self._progress = progress
        for warning in progress.warnings[self._warnings :]:
            self.say(f"warning: {warning}")
        self._warnings = len(progress.warnings)

    def say(self, message: str) -> None:
        """A line above the stages, which stays."""
        style = "yellow" if message.startswith("warning: ") else "bold"
        self.console.print(message, style=style, markup=False, highlight=False)


SIGNS = {"queued": "·", "running": "●", "done": "✓", "reused": "✓", "failed": "✗", "stopped": "■"}
ASCII_SIGNS = {"queued": ".", "running": ">", "done": "+", "reused": "+", "failed": "x", "stopped": "#"}
STYLES = {"queued": "dim", "running": "cyan", "done": "green", "reused": "green", "failed": "red", "stopped": "yellow"}


def render(progress: Progress, unicode: bool = True) -> Table:
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
        name = Text(stage.id or "preparing", style="dim" if stage.status == "queued" else "bold" if stage.status == "running" else "")
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
            grid.add_row(sign, name, Text(first, style="" if stage.status in ("done", "reused") else STYLES[stage.status]), Text("  ".join(rest)))
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
    return [first, *(scores(stage.metrics) if stage.kind == "evaluate" else losses(stage.metrics))]


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
