"""Ask a child process one question and take its answer: what `finery attention` and `finery generate` have in common."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from pipelines.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE, CommandError
from service.cli.child import Child

POLL_SECONDS = 0.1
LONGEST = 100_000
"""Bytes of a request. The system passes arguments of at most 131,072 bytes to a process."""
SPEAKER = "finery: "
"""How the child's own sentences begin."""


@dataclass(frozen=True)
class Answer:
    """What the child said."""

    code: int
    """The command's exit code."""
    data: dict[str, Any] = field(default_factory=dict)
    """Its JSON object."""
    error: str = ""
    """The sentence when `code` is not 0."""
    reason: str | None = None


def ask(verb: str, request: Mapping[str, Any], doing: str, quiet: bool) -> Answer:
    """Run `python -m pipelines VERB REQUEST` to its end, Ctrl-C forwarded; `doing` stands on a terminal meanwhile."""
    words = json.dumps(request)
    if len(words.encode()) > LONGEST:
        raise CommandError(f"the text is longer than {LONGEST:,} bytes, more than any model here reads; shorten it")
    with Child((verb, words), apart=True) as child:
        with waiting(doing, quiet):
            while (code := child.wait(POLL_SECONDS)) is None:
                pass
        said, tail = child.answer(), child.tail()
    try:
        data = json.loads(said.strip().rpartition("\n")[2])
    except ValueError:
        data = {}
    if code == EXIT_DONE and data:
        return Answer(code, data)
    if child.stops:
        return Answer(EXIT_STOPPED, error="Stopped; nothing was written.", reason="stopped")
    told = data.get("error", {})
    if code > 0 and told:
        return Answer(code, error=told["message"], reason=told["reason"])
    if code < 0:
        return Answer(EXIT_FAILED, error=f"The work was ended by {_signal(-code)}.{_likely(-code)}", reason="internal")
    last = tail.splitlines()[-1].removeprefix(SPEAKER) if tail else f"exit code {code}, without a word"
    return Answer(code or EXIT_FAILED, error=f"The work broke off: {last}", reason="internal")


def refuse(answer: Answer, as_json: bool) -> int:
    """Say why there is no answer. Returns the exit code."""
    if as_json:
        status = {EXIT_USAGE: "refused", EXIT_STOPPED: "stopped"}.get(answer.code, "failed")
        error = {"message": answer.error, "reason": answer.reason, "stage": None}
        print(json.dumps({"status": status, "exit_code": answer.code, "error": error}, ensure_ascii=False))
    print(answer.error, file=sys.stderr)
    return answer.code


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
    return " The likely cause is that the machine ran out of memory: take a shorter text or a smaller model." if number == signal.SIGKILL else ""
