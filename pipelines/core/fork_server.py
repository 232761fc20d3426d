"""A process that has its libraries imported and forks a process for each run, which then starts without importing them.

`ForkServer(main)` forks the server from the process that makes it, so that what is imported there is imported for all.
Each run is a process of its own, with its own environment, folder, standard streams and signals; it calls `main(words)`
and exits as `python -m pipelines WORDS` does. The server has one thread, opens nothing, and waits: a fork copies
neither locks that somebody holds nor files that somebody writes. Make it before any thread is started, any CUDA
context exists and any lock is taken. It ends with the process that made it, and its runs are told so by the kernel, as
other runs are (`FINERY_PARENT_PID`, here the server's).

Both sides speak JSON, an object a line: `{"start": {…}}` and `{"signal": [pid, number]}` to the server,
`{"started": pid}` or `{"refused": why}` and `{"ended": [pid, exit code]}` from it.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import random
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from pipelines.core.errors import EXIT_FAILED
from pipelines.core.signals import die_with_parent

Main = Callable[[Sequence[str]], int]
THREADS = "OMP_NUM_THREADS"
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the server leaves to its runs: those sent to the whole process group reach each of them anyway."""


class ForkServerEnded(Exception):
    """The server is gone, and how its runs ended cannot be told."""


def can_fork() -> bool:
    """Whether runs may be forked from this process.

    On other systems than Linux system libraries do not survive a fork, and nothing ends a run with its parent; of a
    process with threads, a fork copies the locks that they hold.
    """
    return sys.platform == "linux" and threading.active_count() == 1


class ForkServer:
    """The side that asks. Raises ForkServerEnded from its methods, and from those of its processes, once it is gone."""

    def __init__(self, main: Main) -> None:
        """Fork the server, whose processes each return the exit code `main(words)`."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._socket, theirs = socket.socketpair()
        self._ended: dict[int, int] = {}
        self._answers: list[dict[str, Any]] = []
        self._torn = b""
        self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            _Server(theirs, main).serve(parent)
        theirs.close()

    def start(self, words: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path) -> ForkedProcess:
        """A process that calls `main(words)` in `folder`; what it prints is appended to the file `output`.

        Raises OSError where the system has no place for another process.
        """
        request = {
            "words": list(words),
            "environment": dict(environment),
            "folder": str(folder),
            "output": str(output.absolute()),
        }
        self._send({"start": request})
        while not self._answers:
            self._receive(None)
        answer = self._answers.pop(0)
        if "refused" in answer:
            raise OSError(answer["refused"])
        return ForkedProcess(self, int(answer["started"]))

    def close(self) -> None:
        """End the server. Runs that it still has are sent SIGTERM by the kernel."""
        self._socket.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def exit_code(self, pid: int, seconds: float | None) -> int | None:
        """How a process ended, waiting so long for it (None: for ever); None while it runs."""
        if pid not in self._ended:
            self._receive(seconds)
        while seconds is None and pid not in self._ended:
            self._receive(None)
        return self._ended.get(pid)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process that has not been waited for."""
        self._send({"signal": [pid, number]})

    def _send(self, request: Mapping[str, object]) -> None:
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise ForkServerEnded from error

    def _receive(self, seconds: float | None) -> None:
        """Take in what the server has said."""
        try:
            if not select.select([self._socket], [], [], seconds)[0]:
                return
            said = self._socket.recv(65_536)
        except (OSError, ValueError) as error:
            raise ForkServerEnded from error
        if not said:
            raise ForkServerEnded
        *lines, self._torn = (self._torn + said).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if "ended" in answer:
                pid, code = answer["ended"]
                self._ended[pid] = code
            else:
                self._answers.append(answer)


class ForkedProcess:
    """A run that a ForkServer started, with the methods of `subprocess.Popen` that its owner needs."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.server = server
        self.pid = pid
        self.returncode: int | None = None
        """The exit code, or less than 0 for the signal that ended it; None while it runs."""

    def poll(self) -> int | None:
        """`returncode`, when it has ended."""
        if self.returncode is None:
            self.returncode = self.server.exit_code(self.pid, 0)
        return self.returncode

    def wait(self) -> int:
        """`returncode`, once it has ended."""
        if self.returncode is None:
            self.returncode = self.server.exit_code(self.pid, None)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            self.server.signal(self.pid, number)


class _Server:
    """The side that forks."""

    def __init__(self, asked: socket.socket, main: Main) -> None:
        self.asked = asked
        self.main = main
        self.running: set[int] = set()
        self.pid = os.getpid()
        self.handlers: dict[int, Any] = {}
        self.woken, self.wake = -1, -1

    def serve(self, parent: int) -> NoReturn:
        """Fork what is asked for until the process that asks has closed its side, or has ended."""
        try:
            die_with_parent(signal.SIGKILL, parent)
            gc.freeze()  # a collection in a run would walk over, and so copy, all that is shared
            self.handlers = {number: signal.getsignal(number) for number in _STOPS}
            for number in _STOPS:
                signal.signal(number, signal.SIG_IGN)
            self.woken, self.wake = os.pipe()
            os.set_blocking(self.wake, False)
            signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
            signal.signal(signal.SIGCHLD, _nothing)
            self._listen()
        except (BrokenPipeError, ConnectionResetError):  # whoever asked is gone
            pass
        except BaseException:
            traceback.print_exc()
            os._exit(EXIT_FAILED)
        os._exit(0)

    def _listen(self) -> None:
        torn = b""
        while True:
            ready, _, _ = select.select([self.asked.fileno(), self.woken], [], [])
            if self.woken in ready:
                os.read(self.woken, 4096)
                self._tell_ended()
            if self.asked.fileno() in ready:
                said = self.asked.recv(65_536)
                if not said:
                    return
                *lines, torn = (torn + said).split(b"\n")
                for line in lines:
                    self._do(json.loads(line))

    def _do(self, request: Mapping[str, Any]) -> None:
        if "signal" in request:
            pid, number = request["signal"]
            if pid in self.running:  # until it is waited for, its id is nobody else's
                os.kill(pid, number)
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # what arrives before it can listen must wait
        try:
            pid = os.fork()
        except OSError as error:
            self._say({"refused": error.strerror or str(error)})
            return
        else:
            if pid == 0:
                self._become(request["start"], before)
            self.running.add(pid)
            self._say({"started": pid})
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _tell_ended(self) -> None:
        while self.running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self.running.discard(pid)
            self._say({"ended": [pid, os.waitstatus_to_exitcode(status)]})

    def _say(self, answer: Mapping[str, object]) -> None:
        self.asked.sendall(json.dumps(answer).encode() + b"\n")

    def _become(self, start: Mapping[str, Any], mask: set[int | signal.Signals]) -> NoReturn:
        """Be the process that was asked for: nothing of the server is left to it but the imported libraries."""
        try:
            die_with_parent(signal.SIGTERM, self.pid)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, handler in self.handlers.items():  # as a new program: ignored stays so, handled does not
                usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, handler if handler is signal.SIG_IGN else usual)
            self.asked.close()
            os.close(self.woken)
            os.close(self.wake)
            _redirect(start["output"])
            os.chdir(start["folder"])
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            begin_program(self.main, start["words"], start["environment"])
        except BaseException:
            traceback.print_exc()
        os._exit(EXIT_FAILED)


def begin_program(main: Main, words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Be, in a forked process, what a new one that calls `main(words)` and exits would be.

    Its standard streams are what descriptors 0, 1 and 2 are now; its folder and its signals are those of this process.
    """
    code = EXIT_FAILED
    try:
        _open_standard_streams()
        threads = os.environ.get(THREADS)
        os.environ.clear()
        os.environ.update(environment)
        atexit._clear()  # what the process that forked this one does at its own exit is not this one's to do
        sys.argv[1:] = words
        _begin_libraries(threads)
        code = _exit_code(main, words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _begin_libraries(threads_before: str | None) -> None:
    """What libraries do when they are imported: they take the number of threads from the environment, and seeds and
    places for temporary files at random."""
    threads = os.environ.get(THREADS)
    torch, numpy, pools = (sys.modules.get(name) for name in ("torch", "numpy", "threadpoolctl"))
    if torch is not None and threads is not None and threads != threads_before:
        torch.set_num_threads(int(threads))
        if pools is not None:
            pools.threadpool_limits(int(threads))
    if numpy is not None:
        numpy.random.seed()
    random.seed()
    tempfile.tempdir = None
    tempfile._name_sequence = None  # type: ignore[attr-defined]


def _redirect(output: str) -> None:
    """Nothing to read, and one file for both outputs."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for descriptor, number in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(descriptor, number)
    for descriptor in (nothing, file):
        if descriptor > 2:
            os.close(descriptor)


def _open_standard_streams() -> None:
    """Both outputs are written at once, as with PYTHONUNBUFFERED."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "w", closefd=False), errors=errors, write_through=True)
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )


def _exit_code(main: Main, words: Sequence[str]) -> int:
    """What `sys.exit(main(words))` at the top of a program ends with, after what it does at its exit."""
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        code = EXIT_FAILED
    except BaseException:
        traceback.print_exc()
        code = EXIT_FAILED
    threading._shutdown()  # type: ignore[attr-defined]  # joins the threads that are left
    atexit._run_exitfuncs()
    return code


def _nothing(number: int, frame: FrameType | None) -> None:
    """A signal that only wakes the server."""
