"""`finery study` and `finery compare`: run every cell of a recipe with a matrix, show how far they are, and the table.

The recipe and all its cells are checked here first. The work is a child process, which starts the cells; what it
reports is read from the study folder's `events.jsonl`, and the table from its `study.json`. While it works a bar and
the runs under way are shown on a terminal, one line an ended run anywhere else.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from pipelines.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE, CommandError
from pipelines.core.load import load_study
from pipelines.core.study_cells import StudyRecipe, named
from service.cli.child import Child
from service.cli.progress import SIGNS, STYLES, duration
from service.cli.run import POLL_SECONDS, STOPPING, Follower, killed, last_message, sentence

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


class SilentStudy:
    """Shows nothing."""

    def __enter__(self) -> SilentStudy:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def apply(self, event: Mapping[str, Any]) -> None:
        """Nothing."""

    def say(self, message: str) -> None:
        """Nothing."""


class StudyLines:
    """One line when a run ends."""

    def __init__(self, out: TextIO, total: int) -> None:
        self.out = out
        self.total = total
        self.ended = 0

    def __enter__(self) -> StudyLines:
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


class StudyBar(StudyLines):
    """A bar that moves below the lines."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(sys.stderr, total)
        from rich.live import Live

        self.console = console
        self.running: dict[str, str] = {}
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> StudyBar:
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
        grid.add_row(
            ProgressBar(total=max(1, self.total), completed=self.ended, width=32),
            Text(f"{self.ended}/{self.total} runs"),
        )
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
        return SilentStudy()
    total = len(plan.cells) + trials_of(plan) + probes_of(plan)
    if not sys.stderr.isatty():
        return StudyLines(sys.stderr, total)
    from rich.console import Console

    console = Console(stderr=True)
    return (
        StudyBar(console, total)
        if console.is_terminal and not console.is_dumb_terminal
        else StudyLines(sys.stderr, total)
    )


def probes_of(plan: StudyRecipe) -> int:
    """How many runs measure the time of a step: one a row, where time is what is made equal."""
    budget = plan.options.budget
    if budget is None or budget.match != "time":
        return 0
    names = [axis.name for axis in plan.axes if not axis.repeats]
    return len({tuple(cell.labels[name] for name in names) for cell in plan.cells if not cell.refusal})


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
            total += left * len(group.repeats)
            if rung + 1 < len(budgets):
                left = max(1, -int(-left * budgets[rung] // budgets[rung + 1]))
    return total


@dataclass(frozen=True)
class Work:
    """What the child is asked to do, and how to ask for it again."""

    arguments: tuple[str, ...]
    folder: Path
    again: str


def study(recipe: Path, overrides: Sequence[str], parallel: int | None, as_json: bool, quiet: bool) -> int:
    """Check a study, then do it. Returns the exit code."""
    folder = recipe if recipe.is_dir() else None
    plan = load_study(recipe / "recipe.yaml" if folder else recipe, overrides)
    options = () if parallel is None else ("--parallel", str(parallel))
    place = folder or Path("runs") / plan.recipe.name
    again = shlex.join(["finery", "study", str(recipe), *overrides, *options])
    return do(Work(("study", str(recipe), *options, *overrides), place, again), plan, as_json, quiet)


def do(work: Work, plan: StudyRecipe, as_json: bool, quiet: bool) -> int:
    """Run the child to its end under a display, and report. Returns its exit code."""
    display = choose_display(as_json or quiet, plan)
    follower = Follower(work.folder / "events.jsonl")
    before = _changed(work.folder / "study.json")
    with Child(work.arguments) as child:
        with display:
            code = follow(child, follower, display)
        tail = child.tail()
        log = child.keep_noise(work.folder)
    fresh = _changed(work.folder / "study.json") != before
    data = _read(work.folder / "study.json") if fresh else {}
    error = "" if code == EXIT_DONE else _why(code, tail, data)
    if code < 0:
        code = EXIT_STOPPED if child.stops else EXIT_FAILED
    if as_json:
        print(json.dumps(as_data(code, error, work, data), ensure_ascii=False))
        return code
    if data:
        from service.cli.study_summary import show

        show(data, work.folder)
    if error:
        print(f"\n{error}", file=sys.stderr)
    if code in (EXIT_STOPPED, EXIT_FAILED):
        print(f"To continue with what is missing:  {work.again}", file=sys.stderr)
    if code == EXIT_FAILED and not data and log is not None:
        print(f"Everything that was printed:       {log}", file=sys.stderr)
    return code


def resume(folder: Path, as_json: bool, quiet: bool) -> int:
    """Continue a study by its folder. Returns the exit code."""
    return study(folder, (), None, as_json, quiet)


def is_study(folder: Path) -> bool:
    """Whether a run folder is a study's."""
    from pipelines.core.errors import RecipeError
    from pipelines.core.yaml_positions import read_yaml

    try:
        data, _ = read_yaml(folder / "recipe.yaml")
    except RecipeError:
        return False
    return isinstance(data, dict) and data.get("matrix") is not None


def follow(child: Child, follower: Follower, display: StudyDisplay) -> int:
    """Take events in until the child has ended. Returns its exit code as the system tells it."""
    announced = False
    while True:
        code = child.wait(POLL_SECONDS)
        for event in follower.new():
            display.apply(event)
        if child.stops and not announced and code is None:
            announced = True
            display.say(STOPPING)
        if code is not None:
            return code


def _why(code: int, tail: str, data: dict[str, Any]) -> str:
    if code == EXIT_STOPPED:
        return "The study stopped; what is done is kept."
    if code < 0:
        return killed(-code, tail)
    if data and (failed := [cell for cell in data["cells"] if cell["status"] == "failed"]):
        return f"{len(failed)} of {len(data['cells'])} cells failed; the first: {sentence(failed[0]['message'])}"
    return last_message(tail) or f"The study ended with exit code {code}, without a word."


def as_data(code: int, error: str, work: Work, data: dict[str, Any]) -> dict[str, Any]:
    """The answer of `--json`."""
    status = {EXIT_DONE: "done", EXIT_USAGE: "refused", EXIT_STOPPED: "stopped"}.get(code, "failed")
    answer: dict[str, Any] = {"status": status, "exit_code": code, "study": str(work.folder)}
    answer |= {
        key: data[key]
        for key in ("seconds", "counts", "reference", "correction", "comparisons", "cells", "search", "rows")
        if key in data
    }
    if code != EXIT_DONE:
        answer["error"] = {"message": error, "reason": None, "stage": None}
        answer["resume"] = work.again
    return answer


def compare(folders: Sequence[Path], as_json: bool, test: str = "all", correction: str = "holm") -> int:
    """Hold finished runs against the first of them. Returns the exit code."""
    from service.cli.child import call, refuse_call
    from service.cli.study_summary import show_comparison

    for folder in folders:
        if not (folder / "recipe.yaml").is_file():
            raise CommandError(
                f"{folder} holds no recipe.yaml, so it is not a run folder; give folders such as runs/NAME"
            )
        if is_study(folder):
            raise CommandError(
                f"{folder} is a study, whose {folder / 'README.md'} compares its cells; give runs, such as "
                f"{folder}/cells/01"
            )
    if len(folders) < 2:
        raise CommandError("compare needs at least two run folders")
    code, out, err = call(("compare", *(str(folder) for folder in folders), "--test", test, "--correction", correction))
    if code != EXIT_DONE:
        return refuse_call(code, last_message(err.strip()), "The runs could not be compared", as_json)
    if as_json:
        sys.stdout.write(out)
    else:
        show_comparison(json.loads(out))
    return EXIT_DONE


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns if path.is_file() else 0


def _read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data
