"""`finery chat`: each line on standard input is a message, and its answer appears word by word.

A child process holds the model and is asked in JSON lines. On a terminal a prompt stands before each message. Where
standard output is no terminal only the answers are written, a line each: a line break in an answer is written as a
backslash and an `n`, a backslash as two (`printf '%b'` reads it back), and a message without an answer has an empty
line. Ctrl-D ends it, Ctrl-C too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from pipelines.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE, CommandError, FineryError
from service.cli.child import PIPELINES, ChildAnswer, last_words, refuse
from service.cli.generate import printable
from service.cli.standard_input import read_line

ASKS = "> "


@dataclass(frozen=True)
class ChatOptions:
    """The options, in the words of the child."""

    model: str
    temperature: float
    top_p: float
    max_new_tokens: int
    seed: int
    system: str | None


def chat(options: ChatOptions, as_json: bool) -> int:
    """Talk until the input ends. With `as_json` each answer is a JSON object. Returns the exit code."""
    command = (*PIPELINES, "chat", json.dumps(asdict(options)))
    variables = os.environ | {"FINERY_PARENT_PID": str(os.getpid()), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables
    ) as child:
        try:
            ready = _heard(child)
            if ready is None:
                return _broken(child, as_json)
            asked = sys.stdin.isatty() and sys.stderr.isatty()
            if asked:
                print(_greeting(ready), file=sys.stderr)
            shown = printable if sys.stdout.isatty() else one_line
            for number in count(1):
                if (message := _message(asked, number)) is None:
                    break
                if message.strip() and not _answered(child, message, as_json, shown):
                    return _broken(child, as_json)
            assert child.stdin is not None
            child.stdin.close()
            return EXIT_DONE
        except KeyboardInterrupt:
            child.terminate()
            print(file=sys.stderr)
            return EXIT_STOPPED
        except FineryError:
            child.terminate()
            raise


def one_line(text: str) -> str:
    """A part of an answer for a pipe: nothing in it ends a line."""
    return printable(text).replace("\\", "\\\\").replace("\n", "\\n")


def _greeting(ready: Mapping[str, Any]) -> str:
    if ready["template"]:
        return "Write a message; the model knows the dialogue so far. Ctrl-D ends it."
    if ready["family"] == "decoder":
        return "The model has no chat template: it continues each line by itself. Ctrl-D ends it."
    return "The model writes one text for each line. Ctrl-D ends it."


def _message(asked: bool, number: int) -> str | None:
    """The line of that number, None at the end. Raises DataError for what is no UTF-8 text."""
    if asked:
        print(ASKS, end="", file=sys.stderr, flush=True)
    return read_line(number)


def _heard(child: subprocess.Popen[str]) -> dict[str, Any] | None:
    """What the child says next; None when it has ended."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        return None
    told: dict[str, Any] = json.loads(line)
    return told


def _answered(child: subprocess.Popen[str], message: str, as_json: bool, shown: Callable[[str], str]) -> bool:
    """Ask, and write the answer as it comes, `shown` part by part; whether it came to its end."""
    assert child.stdin is not None
    child.stdin.write(json.dumps({"message": message}) + "\n")
    child.stdin.flush()
    pieces = []
    while (told := _heard(child)) is not None:
        if "piece" in told:
            pieces.append(told["piece"])
            if not as_json:
                print(shown(told["piece"]), end="", flush=True)
        elif "error" in told:
            if as_json:
                print(json.dumps({"message": message, "error": told["error"]}), flush=True)
                return True
            print(told["error"], file=sys.stderr)
            if not sys.stdout.isatty():  # answers are told apart by their lines
                print(flush=True)
            return True
        else:
            answer = {"message": message, "answer": "".join(pieces), **told["end"]}
            print(json.dumps(answer, ensure_ascii=False) if as_json else "", flush=True)
            if not as_json and told["end"]["turns_left_out"]:
                print(f"({told['end']['turns_left_out']} older turns no longer fit)", file=sys.stderr)
            return True
    return False


def _broken(child: subprocess.Popen[str], as_json: bool) -> int:
    """Say why the child has ended. Returns the exit code."""
    _, noise = child.communicate()
    last = last_words(noise) or "the work broke off without a word"
    code = child.returncode if child.returncode > 0 else EXIT_FAILED
    reason = (CommandError if code == EXIT_USAGE else FineryError).reason
    return refuse(ChildAnswer(code, error=last, reason=reason), as_json)
