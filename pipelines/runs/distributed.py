"""Several processes, on one host or more, for one stage: starting torchrun, joining, stopping, signs of life, failures.

torchrun starts one rank a process, gloo on a CPU and NCCL on GPUs. The driver waits for it. A signal goes to the ranks
themselves, which agree on a step, save and leave; torchrun's own stop would kill them after thirty seconds, checkpoint
written or not. When the driver dies, the kernel ends torchrun, and with it the ranks.

Several hosts share a folder, named by FINERY_WORLD: whoever starts the attempt sets it, with FINERY_HOSTS (how many),
FINERY_HOST (which one this is, from 0) and FINERY_ADDRESS (where the first one is reached), on every host. The first
host runs the recipe; before each stage that runs on all of them it writes `<n>.json` there and starts its share of
torchrun's workers. The others run `python -m pipelines join`, which starts theirs.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pipelines.core import errors
from pipelines.core.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    CommandError,
    FineryError,
    ProcessLost,
    StageError,
    Stopped,
    Unforeseen,
)
from pipelines.core.files import write_text
from pipelines.core.interfaces import Gather, Profile, Value, World
from pipelines.core.recipe import Stage
from pipelines.core.signals import StopSignal, die_with_parent, stop_on_signals

POLL_SECONDS = 0.05
TIMEOUT = 1800
"""Seconds that a process waits for the others where `arguments.ddp_timeout` does not say."""
FAILURE = "failure.json"
"""Written by a rank that ends with an error, read by the driver."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Hosts:
    """The hosts of this attempt, as the environment tells them; one when it tells none."""

    count: int = 1
    number: int = 0
    address: str = "127.0.0.1"
    folder: Path | None = None


def hosts() -> Hosts:
    """The hosts that this process works on. Raises CommandError when the variables do not say which they are."""
    folder, address = os.environ.get("FINERY_WORLD"), os.environ.get("FINERY_ADDRESS")
    count, number = os.environ.get("FINERY_HOSTS", "1"), os.environ.get("FINERY_HOST", "")
    if not folder or count == "1":
        return Hosts()
    if not (count.isdecimal() and number.isdecimal() and int(number) < int(count) and address):
        raise CommandError(
            f"FINERY_WORLD is set, so several hosts work together; set FINERY_HOSTS to their number (it is '{count}'), "
            f"FINERY_HOST to this one's, from 0 (it is '{number}'), and FINERY_ADDRESS to the first one's address"
        )
    return Hosts(int(count), int(number), address, Path(folder))


FOREIGN = {
    "TORCHELASTIC_RUN_ID": "torchrun",
    "ACCELERATE_MIXED_PRECISION": "accelerate launch",
    "LOCAL_RANK": "another launcher",
    "RANK": "another launcher",
}
"""Variables that launchers set for the processes they start, by whom they tell of. Finery's own ranks have them too,
and run the verb `stage`."""


def refuse_foreign_launch() -> None:
    """Raise CommandError where another launcher started this process: each of its processes would do the whole run, or
    one of them all of the work."""
    found = [name for name in FOREIGN if name in os.environ]
    if found:
        raise CommandError(
            f"this process was started by {FOREIGN[found[0]]} ({', '.join(found)} {'are' if found[1:] else 'is'} set), "
            "but Finery starts the processes of a stage itself: start it without another launcher, with "
            "launch.num_processes in the recipe (and launch.hosts for several hosts, see docs/how-to/many-gpus.md); "
            f"where none was used, unset {', '.join(found)}"
        )


@dataclass(frozen=True)
class Call:
    """What a host needs to start its share of a stage's ranks."""

    run_folder: str
    stage: str
    folder: str
    profile: Profile
    processes: int
    """In all."""
    port: int
    cwd: str

    def command(self, here: Hosts) -> list[str]:
        """torchrun for this host's share."""
        where = (
            ["--standalone"]
            if here.count == 1
            else [
                f"--nnodes={here.count}",
                f"--node_rank={here.number}",
                f"--master_addr={here.address}",
                f"--master_port={self.port}",
            ]
        )
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *where,
            f"--nproc_per_node={self.processes // here.count}",
            "--max_restarts=0",
            "-m",
            "pipelines",
            "stage",
            self.run_folder,
            self.stage,
            self.folder,
            self.profile,
            str(self.processes),
        ]


def call_for(run_folder: Path, stage: str, folder: Path, processes: int, profile: Profile, here: Hosts) -> Call:
    """The call for a stage; on several hosts it is announced to the others. Raises StageError when it cannot be
    shared evenly."""
    if here.count == 1:
        return Call(str(run_folder), stage, str(folder), profile, processes, 0, "")
    if processes % here.count:
        raise StageError(
            f"{processes} processes cannot be shared evenly by {here.count} hosts; set launch.num_processes "
            f"to a multiple of {here.count}"
        )
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    call = Call(str(run_folder.absolute()), stage, str(folder.absolute()), profile, processes, port, os.getcwd())
    assert here.folder is not None
    here.folder.mkdir(parents=True, exist_ok=True)
    number = len(list(here.folder.glob("*.json")))
    write_text(here.folder / f"{number}.json", json.dumps(asdict(call)))
    return call


def run_ranks(
    processes: int, run_folder: Path, stage_id: str, folder: Path, stop: StopSignal, profile: Profile = "ddp"
) -> None:
    """Run a stage on `processes` ranks. Raises what the first failing rank raised."""
    (folder / FAILURE).unlink(missing_ok=True)
    environment = os.environ | {"FINERY_PARENT_PID": ""}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))
    here = hosts()
    command = call_for(run_folder, stage_id, folder, processes, profile, here).command(here)
    ranks_log = run_folder / "ranks.log"
    before = ranks_log.stat().st_size if ranks_log.exists() else 0
    tie = functools.partial(die_with_parent, signal.SIGKILL, os.getpid())
    with (
        open(ranks_log, "ab") as log,
        stop.deferred(),
        subprocess.Popen(command, env=environment, stdout=log, stderr=log, preexec_fn=tie) as child,
    ):
        try:
            _wait(child, stop)
        except BaseException:
            child.kill()
            raise
    failure = read_failure(folder)
    killed = _killed_by(ranks_log, before) if child.returncode != 0 and not stop.requested else None
    if killed is None and not stop.requested:
        if child.returncode < 0:  # torchrun itself, which takes its ranks along: they only say that they were stopped
            killed = _signal_name(-child.returncode)
        elif isinstance(failure, Stopped):  # nobody asked for a stop here
            killed = "SIGTERM"
    if killed is not None and (failure is None or isinstance(failure, Unforeseen | Stopped)):
        why = ", most often because the machine's memory ran out" if killed == "SIGKILL" else ""
        raise ProcessLost(
            f"one of its processes was killed by {killed}{why}; `finery resume` continues from the last "
            f"checkpoint, {ranks_log} has their output"
        )
    silent = _exit_codes(ranks_log, before) - {EXIT_DONE, EXIT_FAILED, EXIT_STOPPED} if child.returncode > 0 else set()
    if isinstance(failure, Unforeseen) and (codes := sorted(code for code in silent if code > 0)):  # an echo of that
        raise StageError(
            f"one of its processes ended with exit code {codes[0]} and without a word; `finery resume` continues from "
            f"the last checkpoint, {ranks_log} has their output"
        )
    if failure is not None:
        raise failure
    if child.returncode != 0:
        if stop.requested:
            raise Stopped(f"stage '{stage_id}' was stopped; its last checkpoint is kept")
        how = f"its processes ended with exit code {child.returncode} and without a word"
        raise StageError(f"{how}; `finery resume` continues from the last checkpoint, {ranks_log} has their output")


def _killed_by(log: Path, start: int) -> str | None:
    """The signal that ended a rank from outside, as torchrun reports it: what the others say then is only its echo."""
    numbers = {-code for code in _exit_codes(log, start)} - {signal.SIGTERM, signal.SIGINT}
    names = [each.name for each in signal.Signals if each in numbers]
    return names[0] if names else None


def _exit_codes(log: Path, start: int) -> set[int]:
    """How ranks that failed ended, as torchrun reports it behind the place `start`: less than 0 by a signal."""
    with open(log, "rb") as file:
        file.seek(start)
        return {int(each) for each in re.findall(rb"exitcode\s*: (-?\d+)", file.read())}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def join(stop: StopSignal | None = None) -> int:
    """Take part in every stage that is announced, until a signal. Returns the first exit code of a share that is
    not 0."""
    here = hosts()
    if here.folder is None or here.number == 0:
        raise CommandError(
            "join needs FINERY_WORLD, FINERY_HOSTS, FINERY_HOST (from 1) and FINERY_ADDRESS; the service sets them"
        )
    stop = stop or StopSignal()
    number = 0
    with stop_on_signals(stop), stop.deferred():
        while not stop.requested:
            announced = here.folder / f"{number}.json"
            if not announced.is_file():
                time.sleep(POLL_SECONDS)
                continue
            call = Call(**json.loads(announced.read_text()))
            if (code := _share(call, here, stop)) != EXIT_DONE:
                return EXIT_STOPPED if stop.requested else code
            number += 1
    return EXIT_STOPPED


def _share(call: Call, here: Hosts, stop: StopSignal) -> int:
    tie = functools.partial(die_with_parent, signal.SIGKILL, os.getpid())
    environment = os.environ | {"FINERY_PARENT_PID": ""}
    with subprocess.Popen(call.command(here), env=environment, cwd=call.cwd, preexec_fn=tie) as child:
        _wait(child, stop)
    return abs(int(child.returncode))


def _wait(child: subprocess.Popen[bytes], stop: StopSignal) -> None:
    """Until torchrun ends; a stop that is asked for is passed on to its ranks, once."""
    passed_on = False
    while child.poll() is None:
        if stop.requested and not passed_on:
            passed_on = True
            signal_ranks(child.pid)
        time.sleep(POLL_SECONDS)


def signal_ranks(agent: int) -> None:
    """SIGTERM to torchrun's workers: they agree on a step, save and leave. torchrun's own stop would kill them."""
    import psutil

    try:
        for rank in psutil.Process(agent).children(recursive=True):
            rank.send_signal(signal.SIGTERM)
    except psutil.NoSuchProcess:
        return


def write_failure(folder: Path, error: FineryError) -> None:
    """Leave an error for the driver; the first rank that fails is the one that is heard."""
    path = folder / FAILURE
    message = error.message if isinstance(error, StageError) else str(error)
    try:
        with open(path, "x") as file:
            json.dump({"type": type(error).__name__, "message": message}, file)
    except FileExistsError:
        return


def read_failure(folder: Path) -> FineryError | None:
    """The error a rank left."""
    path = folder / FAILURE
    if not path.is_file():
        return None
    try:
        failure = json.loads(path.read_text())
    except ValueError:
        return None
    path.unlink()
    error: FineryError = getattr(errors, failure["type"], StageError)(failure["message"])
    return error


def join_world(expected: int, profile: Profile, seconds: int = TIMEOUT) -> World:
    """Join the other ranks, for any of which one waits at most so many seconds. Raises StageError when the world is not
    as large as the recipe asked."""
    import torch
    from accelerate import PartialState

    state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(seconds=seconds))
    if state.num_processes != expected:
        raise StageError(f"{expected} processes were asked for, but {state.num_processes} joined")
    return World(rank=state.process_index, size=state.num_processes, profile=profile)


def timeout(stage: Stage) -> int:
    """Seconds that a process of this stage waits for the others."""
    seconds: int = getattr(getattr(stage, "arguments", None), "ddp_timeout", TIMEOUT)
    return seconds


class MainProcess:
    """The main process, as the others wait for it before they meet: as long as it gives signs of life.

    It may work alone for longer than any time-out, such as when it scores completions or tokenises for all. `seconds`
    without a sign of life, which `Heartbeat` leaves in the run folder, are too many; a few beats that are missing are,
    where this process has been asked to stop, as it is by torchrun when another one has died.
    """

    def __init__(
        self, world: World, run_folder: Path, seconds: float = TIMEOUT, stop: StopSignal | None = None
    ) -> None:
        self.world, self.seconds, self.stop = world, seconds, stop or StopSignal()
        self._alive = run_folder / Heartbeat.FOLDER / "0"
        self._meetings = 0

    def wait(self) -> None:
        """Until the main process has called it as often as this one. Raises RuntimeError where it is lost."""
        if self.world.size == 1:
            return
        from torch.distributed.distributed_c10d import _get_default_store

        self._meetings += 1
        store, meeting = _get_default_store(), f"finery/{self._meetings}"
        if self.world.is_main:
            store.set(meeting, "")
            return
        began = changed = time.monotonic()
        beat = self._beat()
        while not store.check([meeting]):
            now = time.monotonic()
            if beat != (beat := self._beat()):
                changed = now
            else:
                few = 3 * Heartbeat.SECONDS
                if now - changed > (few if self.stop.requested and beat is not None else max(self.seconds, few)):
                    raise RuntimeError("timed out waiting for rank 0")
            time.sleep(min(POLL_SECONDS, (now - began) / 10))

    def _beat(self) -> int | None:
        """When it last gave a sign of life, by the clock of its own host."""
        try:
            return self._alive.stat().st_mtime_ns
        except OSError:
            return None


def barrier(main: MainProcess) -> Callable[[], None]:
    """A function that waits until every process has called it."""

    def wait() -> None:
        main.wait()
        if main.world.size > 1:
            import torch.distributed

            torch.distributed.barrier()

    return wait


def gather(main: MainProcess) -> Gather:
    """A function that returns every process's picklable value, in the order of ranks."""

    def collect(value: Value, /) -> list[Value]:
        if main.world.size == 1:
            return [value]
        import torch.distributed

        main.wait()
        values: list[Value] = [value] * main.world.size
        torch.distributed.all_gather_object(values, value)
        return values

    return collect


WAITED = ("timed out waiting", "collective operation timeout", "timeout waiting for")
"""What gloo and NCCL say when another process did not take part in time."""


def absence(error: RuntimeError, run_folder: Path, world: World, seconds: int) -> ProcessLost | None:
    """The error that names the rank which the others waited for in vain; None where `error` is about something else.

    That is one that gives no sign of life any more, else the one that moved on least recently.
    """
    text = str(error).lower()
    if not any(sign in text for sign in WAITED):
        return None
    seen: list[tuple[bool, float, int]] = []
    for rank in set(range(world.size)) - {world.rank}:
        alive = run_folder / Heartbeat.FOLDER / str(rank)
        try:
            beat, step = alive.stat().st_mtime, alive.with_suffix(".step").stat().st_mtime
        except OSError:  # it has ended, and said why
            continue
        seen.append((time.time() - beat < 3 * Heartbeat.SECONDS, step, rank))
    if not seen:
        return None
    lives, step, rank = min(seen)
    how = "it still runs, but" if lives else "it gives no sign of life, and"
    last = datetime.fromtimestamp(step, UTC).isoformat(timespec="seconds")
    return ProcessLost(
        f"rank {rank} did not answer the others for {seconds} s (arguments.ddp_timeout); {how} it last moved on at "
        f"{last}; `finery resume` continues from the last checkpoint"
    )


class Heartbeat:
    """Signs of life of one process, as times of change of two files: `RANK` while it runs, `RANK.step` when it moves
    on.

    A process that hangs in a collective call is alive and does not move on; one that was frozen does neither.
    """

    FOLDER = "heartbeats"
    SECONDS = 5.0

    def __init__(self, run_folder: Path, rank: int) -> None:
        self._alive = run_folder / self.FOLDER / str(rank)
        self._step = self._alive.with_suffix(".step")
        self._stepped = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._touch(self._step)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        for path in (self._alive, self._step):
            path.unlink(missing_ok=True)

    def step(self) -> None:
        """The process moved on; writes at most once a second."""
        now = time.monotonic()
        if now - self._stepped >= 1.0:
            self._stepped = now
            self._touch(self._step)

    def _beat(self) -> None:
        while True:
            self._touch(self._alive)
            if self._stop.wait(self.SECONDS):
                return

    @staticmethod
    def _touch(path: Path) -> None:
        try:
            path.parent.mkdir(exist_ok=True)
            path.touch()
        except OSError:  # a full disk ends no training
            return
