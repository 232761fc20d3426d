"""How far a study is: a bar and the runs under way on a terminal, one line an ended run anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from pipelines.cells import StudyRecipe, named
from service.cli.display import SIGNS, STYLES
from service.cli.progress import duration

if TYPE_CHECKING:
    from rich.console import Console

ENDS = ("done", "reused", "failed", "refused", "stopped")


class StudyDisplay(Protocol):
    """Where the progress of a study is shown."""

    def __enter__(self) -> StudyDisplay: ...

    def __exit__(self, *exception: object) -> None: ...

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take one event in."""

    def say(self, message: str) -> None:
        """Show a sentence."""


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def apply(self, event: Mapping[str, Any]) -> None:
        """Nothing."""

    def say(self, message: str) -> None:
        """Nothing."""


class Lines:
    """One line when a run ends."""

    def __init__(self, out: TextIO, total: int) -> None:
        self.out = out
        self.total = total
        self.ended = 0

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def apply(self, event: Mapping[str, Any]) -> None:
        """Print what ended."""
        if event.get("event") == "warning":
            self.say(f"warning: {event.get('message')}")
        if event.get("event") == "cell" and event.get("status") in ENDS:
            self.ended += 1
            self.say(f"{self.ended}/{self.total}  {told(event)}")

    def say(self, message: str) -> None:
        """One line."""
        print(message, file=self.out, flush=True)


class OnTerminal(Lines):
    """A bar that moves below the lines."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(sys.stderr, total)
        from rich.live import Live

        self.console = console
        self.running: dict[str, str] = {}
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> OnTerminal:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def apply(self, event: Mapping[str, Any]) -> None:
        """Remember what runs, print what ended."""
        if event.get("event") == "cell":
            name = str(event.get("cell"))
            if event.get("status") == "running":
                self.running[name] = named(event.get("labels") or {})
            else:
                self.running.pop(name, None)
        super().apply(event)

    def say(self, message: str) -> None:
        """A line above the bar, which stays."""
        style = "yellow" if message.startswith("warning: ") else None
        self.console.print(message, style=style, markup=False, highlight=False)

    def _render(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_row(ProgressBar(total=max(1, self.total), completed=self.ended, width=32), Text(f"{self.ended}/{self.total} runs"))
        lines = [Text(f"  {SIGNS['running']} {text}", style=STYLES["running"]) for text in self.running.values()]
        return Group(grid, *lines)


def told(event: Mapping[str, Any]) -> str:
    """`done in 42 s: method lora, seed 2`."""
    status, labels = str(event.get("status")), named(event.get("labels") or {})
    seconds = event.get("seconds")
    took = f" in {duration(float(seconds))}" if status == "done" and isinstance(seconds, int | float) else ""
    why = f": {event['message']}" if event.get("message") else ""
    return f"{status}{took}  {labels}{why}"


def choose_display(silent: bool, plan: StudyRecipe) -> StudyDisplay:
    """Live where someone looks at it, lines where they are kept."""
    if silent:
        return Silent()
    total = len(plan.cells) + trials_of(plan) + probes_of(plan)
    if not sys.stderr.isatty():
        return Lines(sys.stderr, total)
    from rich.console import Console

    console = Console(stderr=True)
    return OnTerminal(console, total) if console.is_terminal and not console.is_dumb_terminal else Lines(sys.stderr, total)


def probes_of(plan: StudyRecipe) -> int:
    """How many runs measure the time of a step: one a row, where time is what is made equal."""
    budget = plan.options.budget
    if budget is None or budget.match != "time":
        return 0
    kept = [axis.name for axis in plan.axes if not axis.repeats]
    return len({tuple(cell.labels[name] for name in kept) for cell in plan.cells if not cell.refusal})


def trials_of(plan: StudyRecipe) -> int:
    """How many trials the search of a study runs, every rung of halving counted."""
    search = plan.options.search
    if search is None:
        return 0
    total = 0
    for group in plan.groups:
        left = len(group.grid)
        budgets = next(iter(search.halving.values())) if search.halving else (1,)
        for rung in range(len(budgets)):
            total += left
            if rung + 1 < len(budgets):
                left = max(1, -int(-left * budgets[rung] // budgets[rung + 1]))
    return total
