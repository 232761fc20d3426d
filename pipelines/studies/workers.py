"""Runs of a study as processes of their own, one a GPU, or as many as asked for on a CPU.

Each is `python -m pipelines resume FOLDER`, an ordinary run that can be resumed alone. On Linux it is forked from a
process that has imported what the study's stages need (`fork_server`), and starts without importing it again; where
that process cannot be made, or is lost, each starts anew. A stop is handed on to all of them, and each saves first;
when the study itself is killed, the kernel hands them a SIGTERM (FINERY_PARENT_PID). Runs that are complete already are
recognised by their fingerprints, and not started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from pipelines.core.errors import EXIT_DONE, EXIT_STOPPED, DataError
from pipelines.core.events import read_events
from pipelines.core.files import JSONObject, is_locked
from pipelines.core.fork_server import THREADS, ForkedProcess, ForkServer, ForkServerEnded, Main, can_fork
from pipelines.core.recipe import Recipe, Stage
from pipelines.core.signals import StopSignal
from pipelines.core.study_cells import StudyRecipe
from pipelines.data import builtin
from pipelines.models import stage_models, tokenizer
from pipelines.runs import fingerprints
from pipelines.runs.run import RecipeRun
from pipelines.runs.warm import import_ahead
from pipelines.runs.workspace import RunFolder, StageStore

POLL_SECONDS = 0.05
RELEASE_SECONDS = 120.0
"""How long the run of a study that was killed may take to save and leave its folder."""
PIPELINES: tuple[str, ...] = (sys.executable, "-m", "pipelines")
"""What a run is done with."""
SPEAKER = "finery: "
"""How a run's own sentences begin on standard error."""
SERVER_LOST = (
    "the process that the runs are forked from was ended; the runs under way are resumed, and every run now starts "
    "on its own, which takes some seconds longer"
)


@dataclass(frozen=True)
class RunEnd:
    """How a run ended."""

    name: str
    code: int
    seconds: float
    message: str = ""
    """Why, when `code` is not 0."""
    reason: str = ""
    """The code beside the sentence: `diverged`, `misfit`, …"""


@dataclass(frozen=True)
class DeviceSlot:
    """Where a run may go."""

    devices: tuple[str, ...] = ()
    """For CUDA_VISIBLE_DEVICES; empty on a CPU."""
    threads: int | None = None
    """Threads of a run on a CPU; None leaves it to the environment."""


def slots(parallel: int | None, processes: int | str) -> list[DeviceSlot]:
    """One slot a GPU, or a group of GPUs where a run has several `processes`; on a CPU `parallel` of them, else one."""
    visible = _gpus()
    if not visible:
        count = parallel or 1
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        each = max(1, cores // count) if count > 1 and THREADS not in os.environ else None
        return [DeviceSlot(threads=each)] * count
    size = 1 if processes == "auto" else min(int(processes), len(visible))
    groups = [tuple(visible[at : at + size]) for at in range(0, len(visible) - size + 1, size)]
    return [DeviceSlot(group) for group in groups[:parallel]]


def _gpus() -> list[str]:
    """The GPUs that this process sees, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def fork_server(plan: StudyRecipe, main: Main) -> ForkServer | None:
    """A process that has imported what the runs of `plan` need, and forks them, each for one call of `main`; None where
    there cannot be one. To be made before this process asks for its GPUs."""
    if not can_fork():
        return None
    import_ahead(_modules(plan))
    _parse_embedded_data(plan)
    import torch

    if torch.cuda.is_initialized() or not can_fork():
        return None
    try:
        return ForkServer(main)
    except OSError:
        return None


def _parse_embedded_data(plan: StudyRecipe) -> None:
    """Where a cell reads the embedded documentation: parse it, which takes seconds and gives each run the same."""
    if any(builtin.PREFIX in cell.recipe.to_yaml() for cell in plan.cells if not cell.refusal):
        for name in ("text", "labelled"):
            for split in builtin.PythonDocs(name).splits():
                with suppress(DataError):  # a Python without its documentation: the run says so
                    builtin.PythonDocs(name).content_hash(split)


def _modules(plan: StudyRecipe) -> set[str]:
    """The modules that do the stages of the cells."""
    modules = {stage_models.__name__, tokenizer.__name__}
    for recipe in (cell.recipe for cell in plan.cells if not cell.refusal):
        if recipe.tokenizer is not None and recipe.tokenizer.train is not None:
            modules |= fingerprints.modules_of(recipe.tokenizer.train)
        for stage in recipe.stages:
            modules |= fingerprints.modules_of(stage) | stage.modules(recipe)
    return modules


class WaitingRun(NamedTuple):
    """A run to do."""

    name: str
    folder: Path
    begins_with: str = ""
    """What its first training is, the same for every run that begins with the same one; empty where none shares it."""


@dataclass
class _Run:
    of: WaitingRun
    slot: DeviceSlot
    process: subprocess.Popen[bytes] | ForkedProcess
    console: IO[bytes]
    began: float
    after: int
    """Id of the newest event before it started."""
    offset: int
    """Where its words begin in `console.log`."""

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def folder(self) -> Path:
        return self.of.folder


@dataclass
class Workers:
    """Processes that each do one run at a time."""

    slots: list[DeviceSlot]
    stop: StopSignal
    server: ForkServer | None = None
    """What the processes are forked from; without one each is started anew."""
    running: list[_Run] = field(default_factory=list)

    def do(
        self,
        waiting: list[WaitingRun],
        started: Callable[[str], None] | None = None,
        warn: Callable[[str], object] | None = None,
    ) -> Iterator[RunEnd]:
        """Do every run of `waiting`, yielding each as it ends; after a stop no other is started.

        `waiting` is emptied, and may be added to while runs are on their way. `started(name)` is called when a run
        begins, `warn` with what the user should know. Runs wait for a folder that a killed study's run still writes.
        """
        stopped = False
        made: set[str] = set()
        patience = time.monotonic() + RELEASE_SECONDS
        try:
            while waiting or self.running:
                if self.stop.requested:
                    waiting.clear()
                    for run in self.running if not stopped else []:
                        _signal(run, signal.SIGTERM)
                    stopped = True
                free = [
                    slot
                    for at, slot in enumerate(self.slots)
                    if self.slots[: at + 1].count(slot) > sum(run.slot == slot for run in self.running)
                ]
                for slot in free:
                    chosen = self._next(waiting, made, time.monotonic() > patience)
                    if chosen is None:
                        break
                    waiting.remove(chosen)
                    self.running.append(self._start(chosen, slot))
                    if started is not None:
                        started(chosen.name)
                try:
                    ended = [run for run in self.running if run.process.poll() is not None]
                except ForkServerEnded:
                    lost = self._forget_server()
                    if not stopped:  # the kernel told them to save and stop; they are resumed once they have
                        waiting[:0] = (run.of for run in lost)
                        patience = time.monotonic() + RELEASE_SECONDS
                        if warn is not None:
                            warn(SERVER_LOST)
                        continue
                    yield from (_stopped(run) for run in lost)
                    continue
                for run in ended:
                    self.running.remove(run)
                    if run.process.returncode == EXIT_DONE:
                        made.add(run.of.begins_with)
                    yield _judge(run)
                if not ended:
                    time.sleep(POLL_SECONDS)
        finally:  # an error of ours must not leave them running
            for run in self.running:
                _signal(run, signal.SIGTERM)
            for run in self.running:
                with suppress(ForkServerEnded):
                    run.process.wait()
                run.console.close()
            self.running.clear()

    def _next(self, waiting: list[WaitingRun], made: set[str], impatient: bool) -> WaitingRun | None:
        """The run to start next. Of two that begin with the same training, a pretraining for instance, one would only
        wait for the other's: first comes what begins with a training that none has begun, then what begins with one
        that is `made`, last what begins with one on its way. Of the first, those come first for whose training most
        others wait, so that it is not begun when nothing else is left to do beside it."""
        making = {run.of.begins_with for run in self.running}
        alike = Counter(run.begins_with for run in waiting if run.begins_with)

        def order(run: WaitingRun) -> tuple[int, int]:
            if run.begins_with and run.begins_with in made | making:
                return 1 if run.begins_with in made else 2, 0
            return 0, 1 - max(1, alike[run.begins_with])

        able = [run for run in waiting if impatient or not is_locked(run.folder / ".lock")]
        return (min(able, key=order) if len(self.slots) > 1 else able[0]) if able else None

    def _forget_server(self) -> list[_Run]:
        """Start every run anew from now on; returns the runs whose end cannot be told."""
        self.server = None
        lost = [
            run for run in self.running if run.process.returncode is None and isinstance(run.process, ForkedProcess)
        ]
        for run in lost:
            self.running.remove(run)
            run.console.close()
        return lost

    def _start(self, run: WaitingRun, slot: DeviceSlot) -> _Run:
        folder = run.folder
        environment = dict(os.environ) | {"FINERY_PARENT_PID": str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        if slot.devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.devices)
        if slot.threads is not None:
            environment[THREADS] = str(slot.threads)
        words = ("resume", str(folder))
        console = open(folder / "console.log", "ab")  # noqa: SIM115
        console.write(b"$ " + " ".join((*PIPELINES, *words)).encode() + b"\n")
        console.flush()
        after, offset = _last_event(folder), console.tell()
        process: subprocess.Popen[bytes] | ForkedProcess | None = None
        if self.server is not None:
            parent = {"FINERY_PARENT_PID": str(self.server.pid)}
            with suppress(ForkServerEnded, OSError):
                process = self.server.start(words, environment | parent, Path.cwd(), folder / "console.log")
        if process is None:
            process = subprocess.Popen(
                (*PIPELINES, *words),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        return _Run(run, slot, process, console, time.monotonic(), after, offset)


def _signal(run: _Run, number: int) -> None:
    with suppress(ForkServerEnded):  # then the kernel has told the run
        run.process.send_signal(number)


def _stopped(run: _Run) -> RunEnd:
    """The end of a run that was told to stop, once it has left its folder."""
    patience = time.monotonic() + RELEASE_SECONDS
    while is_locked(run.folder / ".lock") and time.monotonic() < patience:
        time.sleep(POLL_SECONDS)
    return RunEnd(run.name, EXIT_STOPPED, time.monotonic() - run.began, "stopped", "stopped")


def _last_event(folder: Path) -> int:
    """Id of the newest event of a run, 0 without one."""
    return max((event["id"] for event in read_events(folder / "events.jsonl")), default=0)


def _judge(run: _Run) -> RunEnd:
    run.console.close()
    code, seconds = run.process.wait(), time.monotonic() - run.began
    if code == EXIT_DONE:
        return RunEnd(run.name, code, seconds)
    if code in (-signal.SIGTERM, -signal.SIGINT):  # before it could listen
        return RunEnd(run.name, EXIT_STOPPED, seconds, "stopped before there was anything to save", "stopped")
    for event in reversed(list(read_events(run.folder / "events.jsonl", after=run.after))):
        if event["event"] in ("failed", "stopped"):
            return RunEnd(run.name, code, seconds, str(event.get("message", "")), str(event.get("reason", "")))
    if code < 0:
        likely = "; the likely cause is that the machine ran out of memory" if code == -signal.SIGKILL else ""
        return RunEnd(run.name, code, seconds, f"killed by {signal.Signals(-code).name}{likely}", "killed")
    with open(run.folder / "console.log", "rb") as file:
        file.seek(run.offset)
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    own = [line.removeprefix(SPEAKER) for line in lines if line.startswith(SPEAKER)]
    return RunEnd(
        run.name, code, seconds, (own or lines or [f"ended with exit code {code}, without a word"])[-1], "internal"
    )


class _Missing(Exception):
    """A stage is not complete."""


class _Survey(RecipeRun):
    """A job that finds its stages and makes none."""

    def _complete(
        self,
        stage_id: str,
        name: str,
        identity: JSONObject,
        inputs: list[str],
        content: Mapping[str, str],
        code: set[str],
        work: Any,
        stage: Stage | None = None,
    ) -> None:
        fingerprint, _ = fingerprints.fingerprint_of(identity, inputs, content, code)
        self.fingerprints[stage_id] = fingerprint
        link = self.place.folder / name
        if not link.is_symlink() or Path(os.readlink(link)).name != fingerprint:
            raise _Missing
        folder = self.place.store.complete(fingerprint)
        if folder is None or (stage is not None and not stage.still_there(folder)):
            raise _Missing
        self.folders[stage_id] = folder


def is_complete(recipe: Recipe, folder: Path, processes: int) -> bool:
    """Whether the run in `folder` is finished, and running it again, on so many processes, would do nothing again."""
    try:
        if (folder / "recipe.yaml").read_text() != recipe.to_yaml():
            return False
        if "finished" not in json.loads((folder / "manifest.json").read_text()):
            return False
    except (OSError, ValueError):
        return False
    survey = _Survey(recipe, RunFolder(folder, StageStore()), StopSignal())
    survey.__dict__["processes"] = processes  # here there may be more devices than a cell is given
    try:
        survey.make_tokenizer()
        for number, stage in enumerate(recipe.stages, start=1):
            survey.do(number, stage)
    except _Missing:
        return False
    return True
