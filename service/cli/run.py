"""`finery run` and `finery resume`: start the work, show how far it is, say what came out.

The recipe is checked here first, so that a mistake costs milliseconds and leaves nothing behind. The work itself is a
child process; what it reports is read from the run folder's `events.jsonl`, the same stream that every other reader
has. The exit code is the child's.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE, CommandError, RecipeError
from pipelines.core.load import load, refuse_study
from pipelines.core.yaml_positions import read_yaml
from service.cli import summary
from service.cli.child import Child
from service.cli.progress import Display, RunProgress, choose_display


class Follower:
    """Hands out the events that are written after it was made.

    It remembers how far it has read in bytes, so that a file of hours is not read again for each new line. When the
    file becomes shorter than that (a torn line is cut off, a folder is replaced), it starts again and goes by ids.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._last_id = 0
        self.new()

    def new(self) -> list[dict[str, Any]]:
        """Whole events written since the last call, oldest first."""
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]  # the rest is still being written
        self._offset += len(whole)
        events = []
        for line in whole.splitlines():
            try:
                event = json.loads(line)
                number = int(event["id"])
            except (ValueError, KeyError, TypeError):
                continue
            if number > self._last_id:
                self._last_id = number
                events.append(event)
        return events


POLL_SECONDS = 0.1
SPEAKER = "finery: "
"""How the child's own sentences begin."""
STOPPING = "Stopping: what is done is being saved …"
STILL_STOPPING = "Already stopping; the checkpoint is still being saved, please wait."


@dataclass(frozen=True)
class RunWork:
    """What the child is asked to do, and how to ask for it again."""

    arguments: tuple[str, ...]
    """Of `python -m pipelines`."""
    folder: Path
    """The run folder."""
    stages: tuple[tuple[str, str], ...]
    """Id and kind of every stage, in order."""
    again: str
    """The command that the user typed."""


def run(recipe: Path, overrides: Sequence[str], as_json: bool, quiet: bool, profile: bool = False) -> int:
    """Check the recipe, then do what it describes. Returns the exit code."""
    checked = load(recipe, overrides)
    refuse_study(checked, str(recipe))
    work = RunWork(
        ("run", str(recipe), *overrides, *(["--profile"] if profile else [])),
        Path("runs") / checked.name,
        tuple((stage.id, stage.stage) for stage in checked.stages),
        shlex.join(["finery", "run", str(recipe), *overrides]),
    )
    return do(work, as_json, quiet)


def resume(folder: Path, as_json: bool, quiet: bool) -> int:
    """Continue a run that was stopped or killed. Returns the exit code."""
    if not folder.is_dir():
        raise CommandError(
            f"{folder}: there is no such run folder; runs lie in runs/<name> of the folder they were started in"
        )
    if not (folder / "recipe.yaml").is_file():
        raise CommandError(f"{folder} holds no recipe.yaml, so it is not a run folder; give the folder runs/<name>")
    from service.cli.study import is_study
    from service.cli.study import resume as resume_study

    if is_study(folder):
        return resume_study(folder, as_json, quiet)
    work = RunWork(("resume", str(folder)), folder, stages_of(folder), shlex.join(["finery", "resume", str(folder)]))
    return do(work, as_json, quiet)


def stages_of(folder: Path) -> tuple[tuple[str, str], ...]:
    """Id and kind of every stage of the recipe in a run folder, without judging it: that is the child's task."""
    try:
        data, _ = read_yaml(folder / "recipe.yaml")
        entries = [stage for stage in data["stages"] if isinstance(stage, dict)]
    except (RecipeError, KeyError, TypeError):
        return ()
    return tuple((str(stage.get("id", stage.get("stage"))), str(stage.get("stage"))) for stage in entries)


def do(work: RunWork, as_json: bool, quiet: bool) -> int:
    """Run the child to its end under a display, and report. Returns its exit code."""
    progress = RunProgress(work.stages)
    display = choose_display(as_json or quiet)
    follower = Follower(work.folder / "events.jsonl")  # before the child starts, so that no event of it is missed
    with Child(work.arguments) as child:
        with display:
            code = follow(child, follower, progress, display)
        was_killed = code < 0
        code, error = judge(code, child, progress, work)
        log = child.keep_noise(work.folder)
    outcome = summary.collect(work.folder, work.stages) if code == EXIT_DONE else None
    if as_json:
        print(json.dumps(as_data(code, error, work, progress, outcome), ensure_ascii=False))
    elif outcome is not None:
        summary.show(outcome, work.folder, work.again)
    else:
        print("\n".join(["", error, *remedy(code, was_killed, work, log)]), file=sys.stderr)
    return code


def follow(child: Child, follower: Follower, progress: RunProgress, display: Display) -> int:
    """Take events in until the child has ended. Returns its exit code as the system tells it."""
    stops_told = 0
    while True:
        code = child.wait(POLL_SECONDS)
        for event in follower.new():
            progress.apply(event)
        if code is not None and progress.outcome is None:
            progress.break_off("stopped" if child.stops else "failed")
        display.update(progress)
        if child.stops > stops_told and code is None:
            stops_told = child.stops
            display.say(STOPPING if stops_told == 1 else STILL_STOPPING)
        if code is not None:
            return code


def judge(code: int, child: Child, progress: RunProgress, work: RunWork) -> tuple[int, str]:
    """The command's exit code, and the sentence that explains it when it is not 0."""
    if code < 0 and child.stops and -code in (signal.SIGINT, signal.SIGTERM):
        return EXIT_STOPPED, "Stopped before there was anything new to save."
    if code < 0:
        return EXIT_FAILED, killed(-code, child.tail())
    if code == EXIT_DONE:
        return code, ""
    if code == EXIT_STOPPED:
        return code, sentence(progress.message or "stopped; what was done is saved")
    if progress.outcome == "failed" and progress.message:
        return code, sentence(progress.message)
    return code, last_message(
        child.tail()
    ) or f"The run ended with exit code {code} and without a word; start it again with: {work.again}"


def sentence(message: str) -> str:
    """With a capital and a full stop."""
    return f"{message[:1].upper()}{message[1:]}{'' if message.endswith(('.', '!', '?')) else '.'}"


def last_message(tail: str) -> str:
    """What the child said last: its own sentence, or the end of a traceback, without the noise above it."""
    start = ("\n" + tail).rfind(f"\n{SPEAKER}")
    if start >= 0:
        return tail[start:].removeprefix(SPEAKER)
    if '\n  File "' in tail or tail.startswith("Traceback"):
        return f"The run broke off with an error that was not foreseen: {tail.splitlines()[-1]}"
    return tail


def killed(number: int, tail: str) -> str:
    """What it means that a signal ended the child."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    likely = {
        "SIGKILL": (
            " The likely cause is that the machine ran out of memory: a smaller per_device_train_batch_size needs less."
        ),
        "SIGSEGV": " A library crashed.",
        "SIGBUS": " The likely cause is a full disk or a file that was cut off while it was being read.",
        "SIGILL": " A library uses instructions that this processor lacks.",
    }.get(name, "")
    # nobody can speak when killed so
    last = f"\nIts last words:\n{_indented(tail)}" if tail and name != "SIGKILL" else ""
    return f"The run was killed by {name}.{likely}{last}"


def remedy(code: int, was_killed: bool, work: RunWork, log: Path | None) -> list[str]:
    """What to do next, one line each."""
    resumable = (work.folder / "recipe.yaml").is_file()
    command = shlex.join(["finery", "resume", str(work.folder)]) if resumable else work.again
    lines = []
    if code == EXIT_STOPPED or was_killed:
        lines.append(f"To continue where it stopped:  {command}")
    elif code == EXIT_FAILED:
        lines.append(f"When that is put right:        {work.again}    (what is complete is reused)")
    if code == EXIT_FAILED and log is not None:
        lines.append(f"Everything that was printed:   {log}")
    return lines


def as_data(
    code: int, error: str, work: RunWork, progress: RunProgress, outcome: summary.RunSummary | None
) -> dict[str, Any]:
    """The answer of `--json`."""
    status = {EXIT_DONE: "done", EXIT_USAGE: "refused", EXIT_STOPPED: "stopped"}.get(code, "failed")
    data: dict[str, Any] = {
        "status": status,
        "exit_code": code,
        "run": str(work.folder),
        "seconds": progress.seconds,
        "stages": [
            {
                "id": stage.id,
                "stage": stage.kind,
                "status": stage.status,
                "seconds": stage.seconds,
                "metrics": stage.metrics,
            }
            for stage in progress.stages.values()
        ],
        "warnings": progress.warnings,
    }
    if outcome is not None:
        data |= outcome.as_data()
    if code != EXIT_DONE:
        data["error"] = {"message": error, "reason": progress.reason or None, "stage": progress.failed_stage}
        data["resume"] = (
            f"finery resume {shlex.quote(str(work.folder))}" if (work.folder / "recipe.yaml").is_file() else None
        )
    return data


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
