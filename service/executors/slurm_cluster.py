"""What Slurm says of its jobs and nodes, asked by its own commands, and what may be handed to sbatch.

Only commands and formats that Slurm has had since 20.11, in plain text: `--json` needs a plugin that many clusters
lack, and `sacct` a database. A command is a list of arguments; none passes through a shell.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipelines.core.errors import CommandError
from service.executors.local import ROOT
from service.executors.protocol import ExecutorError, Gpu, HostCapacity

COMMAND_SECONDS = 45.0
QUEUE_SECONDS = 15.0
"""What follows running attempts waits less: it can do without."""
PREFIX = "finery-"
"""How the names of jobs begin."""
OVER = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED")
    + ("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT")
)
"""States of a job that has ended. In all others it runs, or may yet."""
USABLE = frozenset(
    ("ALLOCATED", "COMPLETING", "IDLE", "MIXED", "PLANNED", "CLOUD", "DYNAMIC_NORM", "POWERED_DOWN", "POWERING_UP")
)
"""States of a node that runs jobs, or is switched on for them; with any other flag it gets no new ones."""
GONE = frozenset(("DOWN", "ERROR", "FAIL", "FUTURE", "NOT_RESPONDING", "UNKNOWN"))
OPTIONS = frozenset(
    ("constraint", "exclude", "exclusive", "gres-flags", "hint", "licenses", "nice", "qos")
    + ("reservation", "switches", "time", "tmp", "wckey")
)
"""What `FINERY_SLURM_OPTIONS` may hand to sbatch. The rest is the executor's, or would run something else."""
OUTER = ("HOME", "LANG", "LOGNAME", "PATH", "SLURM_CONF", "USER")
"""What Slurm's commands, and so its jobs, see of the server's environment."""

log = logging.getLogger(__name__)


class SlurmError(ExecutorError):
    """A command of Slurm's ended with an error."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True)
class SlurmJob:
    """One line of Slurm's queue."""

    id: str
    name: str
    state: str
    reason: str
    comment: str

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in OVER


@dataclass(frozen=True)
class SlurmNode:
    """What Slurm says of a node: all that it has, and what all jobs hold of it. Memory in bytes."""

    name: str
    address: str
    states: frozenset[str]
    partitions: tuple[str, ...]
    cpus: int
    cpus_held: int
    memory: int
    memory_held: int
    gpus: tuple[str, ...]
    """The kind of each."""
    gpus_held: int

    @property
    def alive(self) -> bool:
        """Whether what runs there can be reached."""
        return not self.states & GONE

    @property
    def open(self) -> bool:
        """Whether it takes new jobs."""
        return self.states <= USABLE


class SlurmCluster:
    """Slurm's commands, for one partition."""

    def __init__(self, partition: str = "", account: str = "", options: Sequence[str] = ()) -> None:
        """`options` are words for sbatch, as `options_of` gives them."""
        self._partition = partition
        where = (("partition", partition), ("account", account))
        self.words = (*(f"--{name}={value}" for name, value in where if value), *options)
        """What every submission says."""
        self._lock = threading.Lock()
        self._queue: dict[str, list[SlurmJob]] = {}
        self._asked_at = float("-inf")
        self._failure: tuple[float, ExecutorError] | None = None

    def run(self, *words: str, timeout: float = COMMAND_SECONDS) -> str:
        """What one of Slurm's commands prints. Raises ExecutorError with what it complains of."""
        environment = {name: os.environ[name] for name in OUTER if name in os.environ}
        environment |= {"PYTHONPATH": ROOT, "PYTHONSAFEPATH": "1"}
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                errors="replace",
                umask=0o077,
                timeout=timeout,
                check=False,
                env=environment,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            raise ExecutorError(
                f"Slurm's command {words[0]} is not installed on this machine; install Slurm's client commands "
                "(Debian's slurm-client), or choose another --executor"
            ) from None
        except subprocess.TimeoutExpired:
            raise ExecutorError(f"Slurm does not answer: {words[0]} said nothing for {timeout:.0f} s") from None
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
            raise SlurmError(f"Slurm refused or did not answer: {lines[-1][:500]}", done.stderr)
        return done.stdout

    def jobs(self, age: float) -> dict[str, list[SlurmJob]]:
        """This user's jobs by name, those that ended lately among them; not older than `age` seconds.

        Raises ExecutorError; again and at once when it could not be asked a moment ago and `age` allows that."""
        with self._lock:
            now = time.monotonic()
            if self._failure is not None and now - self._failure[0] < 5 * age:
                raise self._failure[1]
            if now - self._asked_at > age:
                try:
                    words = ("squeue", "--me", "--noheader", "--states=all", "--format=%i|%j|%T|%r|%k")
                    listed = self.run(*words, timeout=QUEUE_SECONDS)
                except ExecutorError as error:
                    self._failure = (time.monotonic(), error)
                    raise
                self._queue, self._failure = {}, None
                for line in listed.splitlines():
                    job = SlurmJob(*(line.split("|", 4) + [""] * 4)[:5])
                    self._queue.setdefault(job.name, []).append(job)
                self._asked_at = now
            return self._queue

    def nodes(self) -> list[SlurmNode]:
        """The nodes of the partition; of the default one when none is named. Raises ExecutorError."""
        if not self._partition:
            listed = self.run("scontrol", "--oneliner", "show", "partitions")
            default = [line for line in listed.splitlines() if _field(line, "Default") == "YES"]
            self._partition = _field(default[0], "PartitionName") if default else ""
        listed = self.run("scontrol", "--oneliner", "--details", "show", "nodes")
        nodes = [parse_node(line) for line in listed.splitlines() if line.startswith("NodeName=")]
        nodes = [node for node in nodes if self._partition in node.partitions]
        if any(word.startswith("--reservation=") for word in self.words):
            nodes = [replace(node, states=node.states - {"RESERVED"}) for node in nodes]
        if not nodes:
            raise ExecutorError(
                f"Slurm has no partition '{self._partition}' with nodes; name one with FINERY_SLURM_PARTITION "
                "(`sinfo` lists them)"
            )
        return nodes

    def try_folder(self, folder: Path) -> None:
        """Look for a file of the home from nodes that are free. Raises ExecutorError where they do not see it."""
        mark = folder / f".shared-{os.urandom(8).hex()}"
        words = ("srun", "--nodes=1-8", "--ntasks-per-node=1", "--immediate=5", "--time=1", "--mem=16M", *self.words)
        try:
            mark.write_text("")
            self.run(*words, f"--job-name={PREFIX}home", "--chdir=/", "ls", str(mark))
        except OSError as error:
            raise ExecutorError(f"{folder} cannot be written: {error.strerror}") from None
        except ExecutorError as error:
            if "No such file" in getattr(error, "output", ""):
                raise ExecutorError(
                    f"Slurm's nodes do not see {folder}: the slurm executor needs the service's home on a file system "
                    "that this machine and all nodes share under one path; name such a folder with --home"
                ) from None
            log.warning("whether Slurm's nodes share %s could not be tried now: %s", folder, error)
        finally:
            mark.unlink(missing_ok=True)


def _field(line: str, name: str) -> str:
    """The value of `name=value` in a line of `scontrol --oneliner`; empty when it is not there."""
    match = re.search(rf"(?:^|\s){name}=(\S*)", line)
    return match.group(1) if match else ""


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def parse_node(line: str) -> SlurmNode:
    """A line of `scontrol --oneliner --details show nodes`."""
    name = _field(line, "NodeName")
    state = _field(line, "State")  # such as `IDLE`, `MIXED+DRAIN`, `DOWN*`: the asterisk is for silence
    states = {word.rstrip("*~#!%$@^-") for word in state.split("+")} | ({"NOT_RESPONDING"} if "*" in state else set())
    megabytes = _number(_field(line, "RealMemory")) - _number(_field(line, "MemSpecLimit"))
    return SlurmNode(
        name,
        _field(line, "NodeAddr") or name,
        frozenset(states),
        tuple(_field(line, "Partitions").split(",")),
        _number(_field(line, "CPUEfctv")) or _number(_field(line, "CPUTot")),
        _number(_field(line, "CPUAlloc")),
        megabytes << 20,
        _number(_field(line, "AllocMem")) << 20,
        tuple(kind for kind, count in gpus_of(_field(line, "Gres")) for _ in range(count)),
        sum(count for _, count in gpus_of(_field(line, "GresUsed"))),
    )


def gpus_of(gres: str) -> list[tuple[str, int]]:
    """The kinds and numbers in `gpu:a100:4(S:0-1),gpu:2,craynetwork:1`; where none is named it is empty."""
    found = re.findall(r"(?:^|,)gpu(?::([^:,()]*[^:,()\d][^:,()]*))?:(\d+)", gres.replace("(null):", ""))
    return [(kind, int(count)) for kind, count in found]


def capacity_of(node: SlurmNode, cpus: int, memory: int, gpus: int) -> HostCapacity:
    """What attempts may have of a node, those included that run there. The numbers are what ours hold."""
    if not node.open:  # what runs there goes on
        return HostCapacity(node.name, cpus, memory, _gpus(node.gpus[:gpus]), node.alive)
    free = len(node.gpus) - max(0, node.gpus_held - gpus)
    return HostCapacity(
        node.name,
        node.cpus - max(0, node.cpus_held - cpus),
        node.memory - max(0, node.memory_held - memory),
        _gpus(node.gpus[:free]),
        node.alive,
    )


def _gpus(kinds: Sequence[str]) -> tuple[Gpu, ...]:
    return tuple(Gpu(index, 0, kind) for index, kind in enumerate(kinds))


def options_of(text: str) -> tuple[str, ...]:
    """Words for sbatch from `qos=high constraint=a100`. Raises CommandError for what may not be given."""
    words = []
    for word in text.split():
        name, given, value = word.removeprefix("--").partition("=")
        if name not in OPTIONS:
            raise CommandError(
                f"FINERY_SLURM_OPTIONS may not name '{name}'; allowed are {', '.join(sorted(OPTIONS))}, "
                "as in `qos=high constraint=a100`"
            )
        if not re.fullmatch(r"[\w.,:@&|*()\[\]+/-]*", value):
            raise CommandError(f"FINERY_SLURM_OPTIONS gives {name} the value '{value}', which no sbatch option takes")
        words.append(f"--{name}{given}{value}")
    return tuple(words)
