"""Several processes for one stage: torchrun, one rank a process, gloo on a CPU and NCCL on GPUs.

The driver starts torchrun for the stage and waits. A signal goes to the ranks themselves, which agree on a step, save
and leave; torchrun's own stop would kill them after thirty seconds, checkpoint written or not. When the driver dies,
the kernel ends torchrun, and with it the ranks.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from pipelines import errors, world
from pipelines.errors import FineryError, ProcessLost, StageError, Stopped, Unforeseen
from pipelines.protocols import StopSignal, World
from pipelines.signals import die_with_parent

FAILURE = "failure.json"
"""Written by a rank that ends with an error, read by the driver."""


def run_ranks(processes: int, run_folder: Path, stage_id: str, folder: Path, stop: StopSignal) -> None:
    """Run a stage on `processes` ranks. Raises what the first failing rank raised."""
    (folder / FAILURE).unlink(missing_ok=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environment = os.environ | {"FINERY_PARENT_PID": ""}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
    here = world.hosts()
    command = world.call_for(run_folder, stage_id, folder, processes, here).command(here)
    ranks_log = run_folder / "ranks.log"
    before = ranks_log.stat().st_size if ranks_log.exists() else 0
    tie = functools.partial(die_with_parent, signal.SIGKILL, os.getpid())
    with (
        open(ranks_log, "ab") as log,
        stop.deferred(),
        subprocess.Popen(command, env=environment, stdout=log, stderr=log, preexec_fn=tie) as child,
    ):
        told = False
        try:
            while child.poll() is None:
                if stop.requested and not told:
                    told = True
                    world.signal_ranks(child.pid)
                time.sleep(0.05)
        except BaseException:
            child.kill()
            raise
    failure = read_failure(folder)
    killed = _killed_by(ranks_log, before) if child.returncode != 0 and not stop.requested else None
    if killed is None and not stop.requested:
        if child.returncode < 0:  # torchrun itself, which takes its ranks along: what they say then is that they were stopped
            killed = _named(-child.returncode)
        elif isinstance(failure, Stopped):  # nobody asked for a stop here
            killed = "SIGTERM"
    if killed is not None and (failure is None or isinstance(failure, Unforeseen | Stopped)):
        why = ", most often because the machine's memory ran out" if killed == "SIGKILL" else ""
        raise ProcessLost(
            f"one of its processes was killed by {killed}{why}; `finery resume` continues from the last checkpoint, {ranks_log} has their output"
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
    with open(log, "rb") as file:
        file.seek(start)
        numbers = {int(each) for each in re.findall(rb"exitcode\s*: -(\d+)", file.read())}
    names = [each.name for each in signal.Signals if each in numbers - {signal.SIGTERM, signal.SIGINT}]
    return names[0] if names else None


def _named(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
        said = json.loads(path.read_text())
    except ValueError:
        return None
    path.unlink()
    error: FineryError = getattr(errors, said["type"], StageError)(said["message"])
    return error


def join_world(expected: int) -> World:
    """Join the other ranks. Raises StageError when the world is not as large as the recipe asked."""
    import torch
    from accelerate import PartialState

    state = PartialState(cpu=not torch.cuda.is_available())
    if state.num_processes != expected:
        raise StageError(f"{expected} processes were asked for, but {state.num_processes} joined")
    return World(rank=state.process_index, size=state.num_processes)
