"""Interpreters that have imported what attempts need and fork a launcher for each, so that a job begins at once.

An attempt that is `python -m MODULE …` spends most of its first seconds importing torch, transformers and peft. A warm
interpreter is a new process, of which the service knows two things: the environment that attempts of this kind have,
and the module. It calls `MODULE warm`, which imports; then it waits, with one thread, nothing open but its socket, and
nothing read of any project. Each fork of it is a launcher as any other (`launcher`), whose child enters its isolation
and then calls the module where it would have started an interpreter. So nothing of a recipe is read before it is kept
apart, and what an attempt can find in its own memory is imported code, the variables and files that it is given, and
the launcher's request, which names the places that it sees. docs/decisions/0023-warm-processes.md has the reasons.

The first attempt of a project starts an interpreter anew, as every attempt does where this cannot be done.
"""

from __future__ import annotations

import gc
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn
from urllib.parse import urlsplit

from pipelines.core.fork_server import THREADS, begin_program, can_fork
from service.executors import launcher, sandbox
from service.executors.process_tree import MARK, mark_place, write_mark

IDLE_SECONDS = 900.0
"""After so long without an attempt a warm interpreter gives its memory back."""
READY = b"ready"
MARK_BYTES = 128
"""Room for an attempt's id in the environment that /proc shows of a fork."""
_LATE = ("FINERY_", "CUDA_VISIBLE_DEVICES", THREADS)
"""How the names of variables begin that are read when they are needed: attempts that differ in others share no
interpreter."""


_Kind = tuple[str, tuple[tuple[str, str], ...]]
"""What attempts that share an interpreter have in common: the module and the environment that it is imported in."""


def environment_key(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables that are read when libraries are imported, sorted by name."""
    return tuple(sorted((name, value) for name, value in environment.items() if not name.startswith(_LATE)))


def may_be_forked(request: Mapping[str, Any]) -> bool:
    """Whether a launcher's request can be served by a fork.

    bwrap is a program of its own; the place of a Hub token, one of the attempt's own, is read at the import; and a
    password in the address of the operator's proxy, which an isolated attempt is not given, would stay in its memory.
    """
    places = request.get("sandbox")
    if sys.platform != "linux" or tuple(request["command"][:2]) != (sys.executable, "-m"):
        return False
    if "HF_TOKEN_PATH" in request["environment"]:
        return False
    if places is None:
        return True
    proxies = [value for name, value in request["environment"].items() if name.lower().endswith("_proxy")]
    proxies.append(str(places.get("egress", {}).get("upstream", "")))
    known = places["mode"] == "landlock" and "namespaces" in places["features"]
    return known and not any(urlsplit(address).username for address in proxies)


class WarmInterpreters:
    """Those that are kept, the service's side."""

    def __init__(self, most: int) -> None:
        """Keeps `most` of them, those that were used last."""
        self._most = most
        self._kept: dict[_Kind, _Interpreter] = {}
        self._wanted: dict[str, _Kind] = {}
        """By the attempt that had none."""
        self._lock = threading.Lock()

    def launch(self, request: Mapping[str, Any], content: bytes, tether: int | None = None) -> bytes | None:
        """What the launcher answers that was forked for the request, `content` as it is sent; None where none is warm.
        It holds the `tether`, a descriptor, where there is one.

        One is then made for the attempts that come after this one, once it no longer needs the processor.
        """
        if not self._most or not may_be_forked(request):
            return None
        isolated = request.get("sandbox") is not None
        environment = dict(request["environment"]) | (sandbox.own_places("/tmp") if isolated else {})
        kind: _Kind = (str(request["command"][2]), environment_key(environment))
        with self._lock:
            warm = self._kept.pop(kind, None)
            if warm is not None and warm.ended():
                warm.close()
                warm = None
            if warm is None:
                self._wanted[str(request["attempt_id"])] = kind
                return None
            self._kept[kind] = warm  # the last one that was used stands last
            return warm.launch(content, tether) if warm.ready() else None

    def make_for(self, attempt_id: str) -> None:
        """Make one for attempts of the kind of one that had none, now that this one no longer needs the processor: it
        has ended, or waits for questions."""
        with self._lock:
            kind = self._wanted.pop(attempt_id, None)
            if kind is None or kind in self._kept or (warm := _started(*kind)) is None:
                return
            self._kept[kind] = warm
            while len(self._kept) > self._most:
                self._kept.pop(next(iter(self._kept))).close()

    def forget(self, attempt_id: str) -> None:
        """The attempt has ended, and others of its kind need not begin at once."""
        with self._lock:
            self._wanted.pop(attempt_id, None)

    def close(self) -> None:
        """End them. Launchers that they forked go on."""
        with self._lock:
            while self._kept:
                self._kept.popitem()[1].close()


class _Interpreter:
    """One of them: a socket to the process that waits."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.process = process
        self._control = control
        self._ready = False

    def ended(self) -> bool:
        return self.process.poll() is not None

    def ready(self) -> bool:
        """Whether it has imported everything."""
        if not self._ready:
            with suppress(OSError):
                self._ready = self._control.recv(len(READY), socket.MSG_DONTWAIT) == READY
        return self._ready

    def launch(self, content: bytes, tether: int | None = None) -> bytes | None:
        """The answer of a launcher that is forked for the request; None where there was none."""
        ours, theirs = socket.socketpair()
        held = [] if tether is None else [tether]
        with ours:
            try:
                with theirs:
                    socket.send_fds(self._control, [b"launch"], [theirs.fileno(), *held])
                ours.settimeout(30.0)
                ours.sendall(content)
                ours.shutdown(socket.SHUT_WR)
                answer = b""
                while part := ours.recv(65_536):
                    answer += part
            except OSError:
                return None
        return answer or None

    def close(self) -> None:
        """End it. It has no children: launchers are forked twice."""
        self._control.close()
        self.process.kill()
        self.process.wait()


def _started(module: str, environment: Iterable[tuple[str, str]]) -> _Interpreter | None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    variables = dict(environment) | {MARK: "-" * MARK_BYTES, THREADS: "1"}  # a fork has its own
    try:
        with theirs:
            process = subprocess.Popen(
                (sys.executable, "-m", __name__, str(theirs.fileno()), module),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=variables,
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
    except OSError:
        ours.close()
        return None
    return _Interpreter(process, ours)


def serve(control: socket.socket, module: str) -> None:
    """Import what the module's `warm` imports, then fork a launcher for each request, until nobody asks any more."""
    sys.argv = [module, "warm"]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            return
    if not can_fork():
        return
    place = mark_place("-" * MARK_BYTES)
    gc.collect()
    gc.freeze()  # a collection in a fork would walk over, and so copy, all that is shared
    control.send(READY)
    while select.select([control], [], [], IDLE_SECONDS)[0]:
        message, descriptors, _, _ = socket.recv_fds(control, 64, 2)
        if not message:
            return
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if pid == 0:
            control.close()
            _be_launcher(*descriptors, place=place)
        for descriptor in descriptors:
            os.close(descriptor)
        if pid > 0:  # which forks the launcher and ends
            os.waitpid(pid, 0)


def _be_launcher(asked: int, tether: int | None = None, *, place: int) -> NoReturn:
    """The launcher whose request comes from `asked`, and is answered there. Never returns."""
    code = 1
    try:
        os.setsid()
        os.dup2(asked, 0)
        os.dup2(asked, 1)
        os.close(asked)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        gc.disable()
        code = launcher.main(_Become(place), tether)
    finally:
        os._exit(code)


class _Become:
    """Becomes an attempt's command, in the process that is to be it."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __call__(self, command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
        """As os.execvpe for `python -m MODULE …`, without starting an interpreter."""
        write_mark(self._place, environment[MARK], MARK_BYTES)
        _close_files()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as an interpreter sets them
        signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.enable()
        module, *words = command[2:]
        locale = {name: os.environ[name] for name in ("LC_CTYPE",) if name in os.environ}  # an interpreter may set it
        begin_program(lambda _: _run(module), words, {**locale, **environment})


def _run(module: str) -> int:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _close_files() -> None:
    """All but the standard streams, which a new program would not have."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with suppress(OSError):  # the one that listed them
                os.close(int(name))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
