"""The launcher: one small process per attempt that starts the work, keeps its log, and leaves no process behind.

Started by `local` without site-packages, it imports the standard library and three light modules beside it only, and
is ready in milliseconds. It reads one JSON object on standard input, becomes a daemon with a session of its own, and
outlives the service that started it. What it knows lies in the attempt's folder, written atomically:

- `launcher.json`: its process id and start time, the child's, the fencing token. Written before the child may run.
- `exit.json`: how the child ended. Written last, when every process of the attempt is gone.
- `console/OFFSET.log`: what the attempt printed; each file is named by the offset of its first byte in the stream.

A lock on `.attempt.lock` in the job's folder is held as long as it lives: a second attempt of the same job cannot start
beside it, and `.fence` refuses one that is older than an attempt already started. SIGTERM asks for a stop: the child is
sent SIGTERM once, and after `grace` seconds (in `stop.json`) the whole tree is killed. The tree is a cgroup v2 where
one may be made; everywhere, the launcher is the reaper of all its descendants, so that none can hide by forking.

Where the attempt is isolated, the child is the first process inside (see `sandbox`), which hands out a listening
socket: the egress proxy serves it from outside, as another child. Where no cgroup limits memory, the launcher does,
by looking.

With a `tether`, the read end of a pipe, it does not outlive its starter: when the other end closes, the tree is killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time

from service.executors.process_tree import (
    MemoryWatch,
    boot_id,
    descendants,
    execute,
    kill_cgroup,
    limits_memory,
    make_cgroup,
    memory_kills,
    start_time,
)
from service.executors.records import (
    Console,
    FenceRefused,
    delete_folder,
    delete_secrets,
    take_fence,
    write_record,
    write_secrets,
)

TYPE_CHECKING = False
"""As typing's, which takes longer to import than all the rest."""
if TYPE_CHECKING:
    from typing import Any

    from service.executors.process_tree import Become

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CHUNK = 1 << 16


def run_child(
    request: dict[str, Any], output: int, cgroup: str, gate: int, launcher: int, become: Become = execute
) -> None:
    """In the child: take its place in the tree, wait until it is on record, become the command. Never returns."""
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != launcher:
            os._exit(137)
        if cgroup:
            with open(f"{cgroup}/cgroup.procs", "w") as file:
                file.write("0")
        try:
            with open("/proc/self/oom_score_adj", "w") as file:  # when memory runs out the work dies, not its keeper
                file.write("500")
        except OSError:
            pass
        if os.read(gate, 1) != b"g":
            os._exit(137)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 65536), hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(request["folder"])
        become(request["command"], request["environment"])
    except BaseException as error:
        os.write(2 if os.isatty(2) else output, f"finery: the command could not be started: {error}\n".encode())
    os._exit(127)


class Launcher:
    """The life of one attempt, from its fence to its last record."""

    def __init__(self, request: dict[str, Any], become: Become = execute) -> None:
        self.request = request
        self._become = become
        self.record: str = request["record"]
        self.code: int | None = None
        self.asked_to_stop = False
        self.kill_at: float | None = None
        self.tether_lost = False
        self.control: Any = None
        """The socket to the first process inside, where the attempt is isolated."""
        self.reported: int | None = None
        self.egress = 0
        self.memory: MemoryWatch | None = None
        self.ran_out = False

    def begin(self) -> dict[str, Any]:
        """Start the child behind a gate, put both on record, open the gate. Returns the record."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        write_secrets(self.record, self.request.pop("secrets", {}))
        self.cgroup = (
            make_cgroup(self.request["attempt_id"], self.request.get("memory", 0))
            if self.request.get("cgroups", True)
            else ""
        )
        self.kills_before = memory_kills(self.cgroup)
        if self.request.get("memory", 0) and not limits_memory(self.cgroup):
            self.memory = MemoryWatch(self.request["memory"])
        self.console = Console(
            os.path.join(self.record, "console"), self.request["log_bytes"], self.request["log_files"]
        )
        self.output, write_end = os.pipe()
        gate, opener = os.pipe()
        self.wakeup, alarm = os.pipe()
        os.set_blocking(alarm, False)
        os.set_blocking(self.wakeup, False)
        os.set_blocking(self.output, False)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda number, frame: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        launcher = os.getpid()
        if self.request.get("sandbox") is not None:
            self._isolate(write_end, gate)
        else:
            self.child = os.fork()
        if self.child == 0:
            signal.set_wakeup_fd(-1)
            os.close(opener)
            if self.request.get("tether") is not None:
                os.close(self.request["tether"])
            run_child(self.request, write_end, self.cgroup, gate, launcher, self._become)
        os.close(write_end)
        os.close(gate)
        record = {
            "attempt_id": self.request["attempt_id"],
            "fencing_token": self.request["fencing_token"],
            "boot": boot_id(),
            "launcher_pid": launcher,
            "launcher_start": start_time(launcher),
            "child_pid": self.child,
            "child_start": start_time(self.child),
            "cgroup": self.cgroup,
            "record": self.record,
            "started": time.time(),
        }
        if self.control is not None:
            record["private"] = [self.request["sandbox"]["tmp"], self.request["sandbox"]["root"]]
        write_record(self.record, "launcher.json", record)
        os.write(opener, b"g")
        os.close(opener)
        return record

    def _isolate(self, output: int, gate: int) -> None:
        """Start the first process inside, in the attempt's cgroup."""
        from service.executors import sandbox

        places = self.request["sandbox"]
        places["tmp"], places["root"] = os.path.join(self.record, "tmp"), os.path.join(self.record, "root")
        # nothing stands for /tmp, and the paths of sockets must be short
        if places["mode"] == "landlock" and "namespaces" not in places["features"]:
            places["tmp"] = f"/tmp/finery-{os.urandom(8).hex()}"
        for folder in (places["tmp"], places["root"]):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        self.child, self.control = sandbox.start(self.request, output, gate, self._become)
        if self.cgroup:
            with open(f"{self.cgroup}/cgroup.procs", "w") as file:
                file.write(str(self.child))
        try:
            with open(f"/proc/{self.child}/oom_score_adj", "w") as file:
                file.write("500")
        except OSError:
            pass

    def _heard(self) -> bool:
        """Answer what the first process inside says; False when it says no more."""
        import socket

        from service.executors import egress

        try:
            message, descriptors, _, _ = socket.recv_fds(self.control, 256, 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if message.startswith(b"port ") and descriptors and not self.egress:
            self.egress = egress.start(descriptors[0], self.request["sandbox"].get("egress", {}))
            try:
                self.control.send(b"go")
            except OSError:
                return False
        elif message.startswith(b"ended "):
            self.reported = int(message.split()[1])
        for descriptor in descriptors:
            os.close(descriptor)
        return bool(message)

    def watch(self) -> None:
        """Keep the log and answer signals until the child has ended and nothing of its tree is left."""
        poller = select.poll()
        poller.register(self.wakeup, select.POLLIN)
        poller.register(self.output, select.POLLIN)
        control = self.control.fileno() if self.control is not None else None
        if control is not None:
            poller.register(control, select.POLLIN)
        tether = self.request.get("tether")
        if tether is not None:
            poller.register(tether, select.POLLIN)
        while self.code is None:
            for descriptor, _ in poller.poll(self._patience()):
                if descriptor == self.wakeup:
                    self._signals(os.read(self.wakeup, 512))
                elif descriptor == tether:
                    poller.unregister(tether)
                    self.tether_lost, self.kill_at = True, time.monotonic()
                elif descriptor == control:
                    if not self._heard():
                        poller.unregister(control)
                elif not self._drain():
                    poller.unregister(self.output)
            if self.memory is not None and not self.ran_out and self.memory.exceeded(os.getpid(), self.egress):
                self.ran_out, self.kill_at = True, time.monotonic()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self.kill_at = None
                self._kill(signal.SIGKILL)
            self._reap()
        unasked = self.code != 0 and not self.asked_to_stop and not self.tether_lost
        ran_out = self.ran_out or (unasked and memory_kills(self.cgroup) > self.kills_before)
        self.sweep()
        delete_secrets(self.record)
        self._drain()
        if self.control is not None:
            self._clear()
        self._leave(
            {
                "code": self.code,
                "asked": self.asked_to_stop,
                "reason": "out_of_memory" if ran_out else "",
                "tether_lost": self.tether_lost,
                "ended": time.time(),
            }
        )

    def sweep(self) -> None:
        """Kill whatever the child left behind, and wait for it."""
        while True:
            if self.cgroup:
                kill_cgroup(self.cgroup, 5.0)
            left = descendants(os.getpid())
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._reap()
            if not left:
                return
            time.sleep(0.005)

    def _patience(self) -> float | None:
        times = [] if self.kill_at is None else [self.kill_at]
        if self.memory is not None and not self.ran_out:
            times.append(self.memory.next_look)
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None

    def _clear(self) -> None:
        """Remove the attempt's private temporary files."""
        for name in ("tmp", "root"):
            delete_folder(self.request["sandbox"][name])

    def _signals(self, numbers: bytes) -> None:
        if signal.SIGTERM not in numbers:
            return
        grace = self.request.get("grace", 60.0)
        try:
            with open(os.path.join(self.record, "stop.json")) as file:
                grace = float(json.load(file)["grace"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        until = time.monotonic() + grace
        self.kill_at = until if self.kill_at is None else min(until, self.kill_at)
        if not self.asked_to_stop and grace > 0:
            self._kill(signal.SIGTERM)
        self.asked_to_stop = True

    def _kill(self, number: int) -> None:
        if self.code is not None:  # a reaped child's id may belong to somebody else
            return
        if self.control is not None and number == signal.SIGTERM:
            try:
                self.control.send(b"stop", 0x40)  # MSG_DONTWAIT
            except OSError:  # the first process inside has just ended
                return
        else:
            os.kill(self.child, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child:
                if self.control is not None:
                    self._heard()
                self.code = os.waitstatus_to_exitcode(status) if self.reported is None else self.reported
            elif pid == self.egress:
                self.egress = -1

    def _drain(self) -> bool:
        """Move what was printed into the log; False at its end."""
        for _ in range(64):  # signals must be heard over an endless stream
            try:
                content = os.read(self.output, _CHUNK)
            except BlockingIOError:
                return True
            if not content:
                return False
            self.console.write(content)
        return True

    def _leave(self, ended: dict[str, object]) -> None:
        for _ in range(600):  # a full disk may be freed within the minutes that somebody needs to notice
            try:
                write_record(self.record, "exit.json", ended)
                return
            except OSError:
                time.sleep(0.5)


def main(become: Become = execute, tether: int | None = None) -> int:
    """Read what to do, fence, become a daemon, tell the caller where it is, watch. `become` is what the child does in
    the end; `tether` takes the place of the request's, which names a descriptor of the caller."""
    request = json.loads(sys.stdin.buffer.read())
    if tether is not None:
        request["tether"] = tether
    os.umask(request.get("umask", 0o077))
    try:
        take_fence(request.get("fence", request["folder"]), request["fencing_token"])
    except (FenceRefused, OSError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    if os.fork():
        os._exit(0)
    os.setsid()
    answer = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.chdir("/")
    launcher = Launcher(request, become)
    try:
        record = launcher.begin()
    except OSError as error:
        delete_secrets(request["record"])
        os.write(answer, json.dumps({"error": f"the launcher could not start: {error}"}).encode())
        return 1
    os.write(answer, json.dumps(record).encode() + b"\n")
    os.close(answer)
    request["environment"] = {}  # the child's, not this process's
    launcher.watch()
    return 0
