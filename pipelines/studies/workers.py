"""Runs of a study as processes of their own, one a GPU, or as many as asked for on a CPU.

Each is `python -m pipelines resume FOLDER`, an ordinary run that can be resumed alone. A stop is handed on to all of
them, and each saves first; when the study itself is killed, the kernel hands them a SIGTERM (FINERY_PARENT_PID). Runs
that are complete already are recognised by their fingerprints, and not started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pipelines.core.errors import EXIT_DONE, EXIT_STOPPED
from pipelines.core.events import read_events
from pipelines.core.files import JSONObject, is_locked
from pipelines.core.recipe import Recipe, Stage
from pipelines.core.signals import StopSignal
from pipelines.runs import fingerprints
from pipelines.runs.run import Job
from pipelines.runs.workspace import RunFolder, StageStore

POLL_SECONDS = 0.05
RELEASE_SECONDS = 120.0
"""How long the run of a study that was killed may take to save and leave its folder."""
PIPELINES: tuple[str, ...] = (sys.executable, "-m", "pipelines")
"""What a run is done with."""
SPEAKER = "finery: "
"""How a run's own sentences begin on standard error."""


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
        each = max(1, cores // count) if count > 1 and "OMP_NUM_THREADS" not in os.environ else None
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


@dataclass
class _Run:
    name: str
    folder: Path
    slot: DeviceSlot
    process: subprocess.Popen[bytes]
    console: IO[bytes]
    began: float
    after: int
    """Id of the newest event before it started."""
    offset: int
    """Where its words begin in `console.log`."""


@dataclass
class Workers:
    """Processes that each do one run at a time."""

    slots: list[DeviceSlot]
    stop: StopSignal
    running: list[_Run] = field(default_factory=list)

    def do(self, runs: Iterable[tuple[str, Path]], started: Callable[[str], None] | None = None) -> Iterator[RunEnd]:
        """Do every (name, folder), yielding each as it ends; after a stop no other is started.

        `started(name)` is called when a run begins. Runs wait for a folder that a killed study's run still writes.
        """
        waiting = list(runs)
        stopped = False
        patience = time.monotonic() + RELEASE_SECONDS
        try:
            while waiting or self.running:
                if self.stop.requested and not stopped:
                    stopped, waiting = True, []
                    for run in self.running:
                        run.process.send_signal(signal.SIGTERM)
                free = [
                    slot
                    for at, slot in enumerate(self.slots)
                    if self.slots[: at + 1].count(slot) > sum(run.slot == slot for run in self.running)
                ]
                for slot in free:
                    at = next(
                        (
                            at
                            for at, (_, folder) in enumerate(waiting)
                            if not is_locked(folder / ".lock") or time.monotonic() > patience
                        ),
                        None,
                    )
                    if at is None:
                        break
                    name, folder = waiting.pop(at)
                    self.running.append(_start(name, folder, slot))
                    if started is not None:
                        started(name)
                ended = [run for run in self.running if run.process.poll() is not None]
                for run in ended:
                    self.running.remove(run)
                    yield _judge(run)
                if not ended:
                    time.sleep(POLL_SECONDS)
        finally:  # an error of ours must not leave them running
            for run in self.running:
                run.process.send_signal(signal.SIGTERM)
            for run in self.running:
                run.process.wait()
                run.console.close()
            self.running.clear()


def _last_event(folder: Path) -> int:
    """Id of the newest event of a run, 0 without one."""
    return max((event["id"] for event in read_events(folder / "events.jsonl")), default=0)


def _start(name: str, folder: Path, slot: DeviceSlot) -> _Run:
    environment = dict(os.environ) | {"FINERY_PARENT_PID": str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    if slot.devices:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.devices)
    if slot.threads is not None:
        environment["OMP_NUM_THREADS"] = str(slot.threads)
    command = [*PIPELINES, "resume", str(folder)]
    console = open(folder / "console.log", "ab")  # noqa: SIM115
    console.write(b"$ " + " ".join(command).encode() + b"\n")
    console.flush()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, env=environment
    )
    return _Run(name, folder, slot, process, console, time.monotonic(), _last_event(folder), console.tell())


def _judge(run: _Run) -> RunEnd:
    run.console.close()
    code, seconds = int(run.process.returncode), time.monotonic() - run.began
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


class _Survey(Job):
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
