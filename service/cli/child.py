"""The child process `python -m pipelines VERB …` that does the work: signals that reach it, questions that it answers.

The child leads a process group of its own. A Ctrl-C in a terminal therefore reaches only the command, which hands
it on exactly once: the child saves a checkpoint and exits 75, and a second Ctrl-C cannot tear that checkpoint. A
terminal that closes (SIGHUP) asks it to stop as SIGTERM does; where SIGHUP is ignored when the command starts, which is
what nohup does, the command and its child go on ignoring it. When the command itself is killed, the child asks the
kernel for a SIGTERM (it reads FINERY_PARENT_PID), so no run is left without an owner.

`ask` is for verbs that put one question and show one answer, such as `finery generate`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from pipelines.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE, CommandError, FineryError
from pipelines.core.signals import BY_SIGNAL
from service.cli.app import failure

PIPELINES: tuple[str, ...] = (sys.executable, "-m", "pipelines")
"""What a verb that touches weights is run with."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TAIL_BYTES = 16_384
TAIL_LINES = 20


class Child:
    """A running verb. Use as a context manager: signals are forwarded inside the `with` block."""

    def __init__(self, arguments: Sequence[str], apart: bool = False) -> None:
        """`apart` keeps what the child prints on stdout away from its other output, for `answer`."""
        self.arguments = (*PIPELINES, *arguments)
        self.stops = 0
        """How often the user has asked to stop. Counted only: printing inside a signal handler can tear other
        output."""
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}
        # A pipe would break when the command dies, and with it the child's last checkpoint. The file has no name, so
        # it is gone when the last of both has ended.
        self._noise = tempfile.TemporaryFile()  # noqa: SIM115
        self._answer = tempfile.TemporaryFile() if apart else None  # noqa: SIM115

    def __enter__(self) -> Child:
        for number in STOP_SIGNALS:
            before = signal.getsignal(number)
            if number == signal.SIGHUP and before == signal.SIG_IGN:
                continue  # started with nohup, and the child inherits it: closing the terminal must not stop the run
            self._before[number] = before
            signal.signal(number, self._stop)
        self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._pause)
        try:
            self._process = subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=self._answer or self._noise,
                stderr=self._noise,
                process_group=0,
                env=os.environ
                | {
                    "FINERY_PARENT_PID": str(os.getpid()),
                    "PYTHONSAFEPATH": "1",  # a `datasets.py` in the user's folder must not stand in for the library
                    "PYTHONUNBUFFERED": "1",
                },
            )
        except BaseException:
            self.__exit__()
            raise
        if self.stops:  # a signal arrived before there was a child to hand it to
            self._process.send_signal(signal.SIGTERM)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None and self._process.poll() is None:  # an error of ours must not leave it running
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        self._noise.close()
        if self._answer is not None:
            self._answer.close()

    def wait(self, seconds: float) -> int | None:
        """Wait at most so long; the exit code when the child has ended, negative for a signal, else None."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def answer(self) -> str:
        """Everything that a child kept apart printed on stdout."""
        assert self._answer is not None
        return os.pread(self._answer.fileno(), os.fstat(self._answer.fileno()).st_size, 0).decode(errors="replace")

    def tail(self) -> str:
        """The last lines that the child printed."""
        size = os.fstat(self._noise.fileno()).st_size
        text = os.pread(self._noise.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
        lines = text.decode(errors="replace").split("\n")  # splitlines would split at carriage returns too
        # progress bars of libraries rewrite their line with carriage returns: keep what was last seen
        lines = [line.rstrip().rpartition("\r")[2] for line in lines]
        return "\n".join([line for line in lines if line.strip()][-TAIL_LINES:])

    def keep_noise(self, folder: Path) -> Path | None:
        """Add what was printed to `folder/console.log`, below that of earlier runs; None when there is nothing to
        keep."""
        if not folder.is_dir() or not self.tail():
            return None
        path = folder / "console.log"
        try:
            with open(path, "ab") as file:
                file.write(b"$ " + " ".join(self.arguments).encode() + b"\n")
                self._noise.seek(0)
                shutil.copyfileobj(self._noise, file)
                file.write(b"\n")
        except OSError:  # a full disk must not hide why the run ended
            return None
        return path

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1
        if self._process is not None and self.stops == 1:
            # a closed terminal is a request to save and stop, as SIGTERM is
            self._process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def _pause(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z pauses the work too, not only its display."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # the command sleeps here until `fg`
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)


def call(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Run a verb that answers at once: its exit code, what it said on stdout, and on stderr."""
    done = subprocess.run(
        (*PIPELINES, *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=os.environ | {"PYTHONSAFEPATH": "1"},
    )
    return done.returncode, done.stdout, done.stderr


POLL_SECONDS = 0.1
LONGEST = 100_000
"""Bytes of a request. The system passes arguments of at most 131,072 bytes to a process."""
SPEAKER = "finery: "
"""How the child's own sentences begin."""
FAULTHANDLER = re.compile(r'\s*File ".*", line \d+ in \S+')
"""The last line of a process that `faulthandler` ended: `pipelines.data.chat_prompts` has it do so."""


@dataclass(frozen=True)
class ChildAnswer:
    """What the child said."""

    code: int
    """The command's exit code."""
    data: dict[str, Any] = field(default_factory=dict)
    """Its JSON object."""
    error: str = ""
    """The sentence when `code` is not 0."""
    reason: str | None = None


def ask(verb: str, request: Mapping[str, object], doing: str, quiet: bool) -> ChildAnswer:
    """Run `python -m pipelines VERB REQUEST` to its end, Ctrl-C forwarded; `doing` stands on a terminal meanwhile."""
    words = json.dumps(request)
    if len(words.encode()) > LONGEST:
        raise CommandError(f"the text is longer than {LONGEST:,} bytes, more than any model here reads; shorten it")
    with Child((verb, words), apart=True) as child:
        with waiting(doing, quiet):
            while (code := child.wait(POLL_SECONDS)) is None:
                pass
        printed, tail = child.answer(), child.tail()
    try:
        data = json.loads(printed.strip().rpartition("\n")[2])
    except ValueError:
        data = {}
    if code == EXIT_DONE and data:
        return ChildAnswer(code, data)
    error = data.get("error", {})
    if child.stops:
        message = str(error.get("message", "")) if error.get("reason") == "stopped" else BY_SIGNAL
        stopped = "Stopped; nothing was written." if message.startswith(BY_SIGNAL) else message
        return ChildAnswer(EXIT_STOPPED, error=stopped, reason="stopped")
    if code > 0 and error:
        return ChildAnswer(code, error=error["message"], reason=error["reason"])
    if code < 0:
        return ChildAnswer(
            EXIT_FAILED, error=f"The work was ended by {_signal(-code)}.{_likely(-code)}", reason="internal"
        )
    last = last_words(tail) or f"exit code {code}, without a word"
    return ChildAnswer(code or EXIT_FAILED, error=f"The work broke off: {last}", reason="internal")


def last_words(noise: str) -> str:
    """What a child that broke off said last on stderr; empty where it said nothing."""
    lines = [line for line in noise.splitlines() if line.strip()]
    if lines and FAULTHANDLER.fullmatch(lines[-1]):
        return "the model's chat template ran for too long, and could be ended with the process alone"
    return lines[-1].removeprefix(SPEAKER) if lines else ""


def ask_and_show(
    verb: str, request: Mapping[str, object], doing: str, as_json: bool, show: Callable[[dict[str, object]], None]
) -> int:
    """Show the answer, or print it as one JSON object, or say why there is none. Returns the exit code."""
    answer = ask(verb, request, doing, as_json)
    return refuse(answer, as_json) if answer.code != EXIT_DONE else show_or_print(answer.data, as_json, show)


def show_or_print(data: dict[str, Any], as_json: bool, show: Callable[[dict[str, object]], None]) -> int:
    """Show what a child answered, or print it as one JSON object. Returns the exit code."""
    if as_json:
        print(json.dumps({"status": "done", "exit_code": EXIT_DONE, **data}, ensure_ascii=False))
    else:
        show(data)
    return EXIT_DONE


def refuse(answer: ChildAnswer, as_json: bool) -> int:
    """Say why there is no answer. Returns the exit code."""
    if as_json:
        print(json.dumps(failure(answer.code, answer.error, answer.reason), ensure_ascii=False))
    print(answer.error, file=sys.stderr)
    return answer.code


def refuse_call(code: int, noise: str, otherwise: str, as_json: bool) -> int:
    """Hand on what a verb of `call` said on stderr, or `otherwise` where it said nothing. Returns the exit code."""
    code = code if code > 0 else EXIT_FAILED
    sentence = last_words(noise) or f"{otherwise} (exit code {code})."
    if as_json:
        reason = (CommandError if code == EXIT_USAGE else FineryError).reason
        print(json.dumps(failure(code, sentence, reason), ensure_ascii=False))
    print(noise.rstrip() or sentence, file=sys.stderr)
    return code


def waiting(doing: str, quiet: bool) -> Any:
    """A line that moves while somebody looks at it."""
    if quiet or not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(doing)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _likely(number: int) -> str:
    return (
        " The likely cause is that the machine ran out of memory: take a shorter text or a smaller model."
        if number == signal.SIGKILL
        else ""
    )
