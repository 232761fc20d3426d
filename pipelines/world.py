"""A stage over several hosts: the first host announces it, the others join.

The hosts share a folder, named by FINERY_WORLD: whoever starts the attempt sets it, with FINERY_HOSTS (how many),
FINERY_HOST (which one this is, from 0) and FINERY_ADDRESS (where the first one is reached), on every host. The first host
runs the recipe; before each stage that runs on all of them it writes `<n>.json` there and starts its share of torchrun's
workers. The others run `python -m pipelines join`, which starts theirs.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines.errors import EXIT_DONE, EXIT_STOPPED, CommandError, StageError
from pipelines.protocols import StopSignal
from pipelines.signals import die_with_parent, stop_on_signals

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Hosts:
    """The hosts of this attempt, as the environment tells them; one when it tells none."""

    count: int = 1
    number: int = 0
    address: str = "127.0.0.1"
    folder: Path | None = None


def hosts() -> Hosts:
    """The hosts that this process works on."""
    folder = os.environ.get("FINERY_WORLD")
    count = int(os.environ.get("FINERY_HOSTS", "1"))
    if not folder or count == 1:
        return Hosts()
    return Hosts(count, int(os.environ["FINERY_HOST"]), os.environ["FINERY_ADDRESS"], Path(folder))


@dataclass(frozen=True)
class Call:
    """What a host needs to start its share of a stage's ranks."""

    run_folder: str
    stage: str
    folder: str
    processes: int
    """In all."""
    port: int
    cwd: str

    def command(self, here: Hosts) -> list[str]:
        """torchrun for this host's share."""
        where = (
            ["--standalone"] if here.count == 1 else
            [f"--nnodes={here.count}", f"--node_rank={here.number}", f"--master_addr={here.address}", f"--master_port={self.port}"]
        )  # fmt: skip
        return [
            sys.executable, "-m", "torch.distributed.run", *where, f"--nproc_per_node={self.processes // here.count}", "--max_restarts=0",
            "-m", "pipelines", "stage", self.run_folder, self.stage, self.folder, str(self.processes),
        ]  # fmt: skip


def call_for(run_folder: Path, stage: str, folder: Path, processes: int, here: Hosts) -> Call:
    """The call for a stage; on several hosts it is announced to the others. Raises StageError when it cannot be shared evenly."""
    if here.count == 1:
        return Call(str(run_folder), stage, str(folder), processes, 0, "")
    if processes % here.count:
        raise StageError(f"{processes} processes cannot be shared evenly by {here.count} hosts; set launch.num_processes to a multiple of {here.count}")
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    call = Call(str(run_folder.absolute()), stage, str(folder.absolute()), processes, port, os.getcwd())
    assert here.folder is not None
    here.folder.mkdir(parents=True, exist_ok=True)
    number = len(list(here.folder.glob("*.json")))
    temporary = here.folder / f".{number}.tmp"
    temporary.write_text(json.dumps(asdict(call)))
    temporary.rename(here.folder / f"{number}.json")
    return call


def join(stop: StopSignal | None = None) -> int:
    """Take part in every stage that is announced, until a signal. Returns the first exit code of a share that is not 0."""
    here = hosts()
    if here.folder is None or here.number == 0:
        raise CommandError("join needs FINERY_WORLD, FINERY_HOSTS, FINERY_HOST (from 1) and FINERY_ADDRESS; the service sets them")
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
    told = False
    with subprocess.Popen(call.command(here), env=environment, cwd=call.cwd, preexec_fn=tie) as child:
        while child.poll() is None:
            if stop.requested and not told:
                told = True
                signal_ranks(child.pid)
            time.sleep(POLL_SECONDS)
    return abs(int(child.returncode))


def signal_ranks(agent: int) -> None:
    """SIGTERM to torchrun's workers: they agree on a step, save and leave. torchrun's own stop would kill them."""
    import psutil

    try:
        for rank in psutil.Process(agent).children(recursive=True):
            rank.send_signal(signal.SIGTERM)
    except psutil.NoSuchProcess:
        return
