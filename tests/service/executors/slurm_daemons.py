"""A real Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd of Debian's packages, unprivileged
by systemd, with ports, keys and state of their own."""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "srun", "scancel", "scontrol")
NODES = ("node1", "node2")
CONFIGURATION = """\
ClusterName=finery
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SlurmdTimeout=10
KillWait=5
MessageTimeout=5
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=16000 Gres=gpu:fake:2
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 RealMemory=16000
PartitionName=main Nodes=node1,node2 Default=YES State=UP MaxTime=INFINITE PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=node1,node2 State=UP MaxTime=INFINITE PriorityTier=10
"""


def path():
    """Where the daemons are found: Debian puts them where only root looks."""
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def missing():
    """The first program that is not installed; empty when all are."""
    return next((name for name in PROGRAMS if shutil.which(name, path=path()) is None), "")


class SlurmDaemons:
    """The daemons, as processes of this one."""

    lease = 6.0

    def __init__(self):
        # munge's socket must be open to all, and a unix socket's path is short
        self.folder = Path(tempfile.mkdtemp(prefix="finery-slurm-", dir="/tmp"))
        self.folder.chmod(0o711)
        for name in ("munge", "state", *NODES):
            (self.folder / name).mkdir(mode=0o711)
        (self.folder / "munge").chmod(0o711)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o400)
        values = {"host": socket.gethostname(), "user": getpass.getuser(), "folder": self.folder, "ports": _ports(3)}
        self.configuration = self.folder / "slurm.conf"
        self.configuration.write_text(CONFIGURATION.format(**values))
        (self.folder / "gres.conf").write_text("NodeName=node1 Name=gpu Type=fake File=/dev/tty[0-1]\n")
        self.environment = {**os.environ, "SLURM_CONF": str(self.configuration), "PATH": path()}
        self.processes = {}
        # where others may write in a folder above, as in /tmp without the sticky bit, munged starts by force alone
        places = [f"--{name}-file={self.folder}/munge/{name}" for name in ("key", "pid", "log", "seed")]
        self._begin("munged", "--foreground", "--force", f"--socket={self.folder}/munge/socket", *places)
        self._until(lambda: (self.folder / "munge" / "socket").exists())
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        self._until(lambda: sorted(self._states().values()) == ["idle", "idle"])

    def start_controller(self):
        self._begin("slurmctld", "-D")
        self._until(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%t") or self._states())

    def start_node(self, node):
        self._begin("slurmd", "-D", "-N", node)

    def end(self, name, number=15):
        """End a daemon: `slurmctld`, `node1`."""
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(30)

    def ask(self, *words):
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout

    def close(self):
        if "slurmctld" in self.processes:  # what runs would outlive its daemons
            self.ask("scancel", "--me")
            limit = time.monotonic() + 10
            while self.ask("squeue", "--noheader") and time.monotonic() < limit:
                time.sleep(0.05)
        for name in reversed(list(self.processes)):
            self.end(name, 15 if name == "munged" else 9)
        for pid in self._left():
            os.kill(pid, 9)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _left(self):
        """Slurm's steps, which outlive its daemons; they log into the folder."""
        found = set()
        for path in Path("/proc").glob("[0-9]*/fd/*"):
            try:
                if os.readlink(path).startswith(f"{self.folder}/"):
                    found.add(int(path.parts[2]))
            except OSError:
                continue
        return found - {os.getpid()}

    def _states(self):
        listed = self.ask("sinfo", "--noheader", "-N", "--partition=main", "--format=%N %t").split()
        return dict(zip(listed[::2], listed[1::2], strict=True))

    def _begin(self, program, *words):
        name = words[-1] if program == "slurmd" else program
        output = self.folder / f"{name}.out"
        with open(output, "ab") as file:
            found = shutil.which(program, path=path())
            self.processes[name] = subprocess.Popen((found, *words), env=self.environment, stdout=file, stderr=file)

    def _until(self, condition, seconds=30.0):
        limit = time.monotonic() + seconds
        while not condition():
            said = "".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.out"))
            assert time.monotonic() < limit, f"Slurm did not start: {said}"
            time.sleep(0.05)


def _ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def started():
    """The cluster, with its configuration in this process's environment; ends with `close`."""
    if program := missing():
        pytest.skip(f"needs Debian's packages slurm-wlm and munge: {program} is not installed")
    return SlurmDaemons()
