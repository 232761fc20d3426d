"""Checking JSONL files line by line: chat, preference and prompt rows as OpenAI's fine-tuning guide has them, and rows
of evals.

chat         {"messages": [{"role": "user", "content": "…"}, …, {"role": "assistant", "content": "…"}]}
preference   {"input": {"messages": […]}, "preferred_output": […], "non_preferred_output": […]}
prompt       {"messages": [… ending with the user], …}   for reinforcement, with whatever the grader reads beside them
eval         {"item": {…}}, with "sample": {…} where the answer is there already
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Literal

from service.api.limits import MOST_DEPTH, SURROGATE

Shape = Literal["chat", "preference", "prompt", "eval"]
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MOST_TOLD = 20
"""Mistakes that are told; a file with the wrong shape has one on every line."""
LONGEST_LINE = 4 << 20
PIECE = 1 << 20


@dataclass(frozen=True)
class LineMistake:
    """One thing wrong with one line."""

    line: int
    """From 1; 0 for the whole file."""
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


@dataclass(frozen=True)
class FileReport:
    """What a file holds."""

    shape: Shape | None
    """That of its first good row."""
    rows: int
    characters: int
    """Of all rows, as a first measure of its size in tokens."""
    mistakes: tuple[LineMistake, ...]
    more: int = 0
    """Mistakes beyond those that are told."""

    @property
    def sentence(self) -> str:
        """All mistakes in one text, a line each."""
        rest = [f"and {self.more} more"] if self.more else []
        return "\n".join([*(str(each) for each in self.mistakes), *rest])


def examine(file: IO[bytes], shape: Shape | None = None) -> FileReport:
    """Read every line of a file. Without `shape`, all rows must have that of the first."""
    mistakes: list[LineMistake] = []
    rows = characters = more = 0
    for number, line in lines(file):
        problem, kind = (line, None) if isinstance(line, str) else _row(line, shape)
        shape = shape or kind
        if problem is None:
            rows += 1
            characters += len(line)
        elif len(mistakes) < MOST_TOLD:
            mistakes.append(LineMistake(number, problem))
        else:
            more += 1
    if not mistakes and not rows:
        mistakes.append(LineMistake(0, "the file has no examples, must have at least one"))
    return FileReport(shape, rows, characters, tuple(mistakes), more)


def lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | str]]:
    """Every line with its number; a text in place of the bytes says what is wrong with it. Blank last lines are
    left out."""
    number, blank = 0, 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            yield number, f"is longer than {LONGEST_LINE} bytes"
            while not line.endswith(b"\n") and (line := file.readline(PIECE)):
                pass
            continue
        if not line.strip():
            blank = blank or number
            continue
        if blank:
            yield blank, "is empty"
            blank = 0
        yield number, line


def _row(line: bytes, shape: Shape | None) -> tuple[str | None, Shape | None]:
    """What is wrong with one row, and the shape that it has."""
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return f"is not UTF-8 text (byte {error.start + 1})", None
    except json.JSONDecodeError as error:
        return f"is not valid JSON: {error.msg} (column {error.colno})", None
    except (ValueError, RecursionError):
        return "is not valid JSON: it is nested too deeply or holds a number too long", None
    if (problem := _unfit(line, row)) is not None:
        return problem, None
    if not isinstance(row, dict):
        return f"is {_kind(row)}, must be an object", None
    kind = shape_of(row)
    if shape == "eval":
        return _eval(row), "eval"
    if kind is None:
        return (
            f"has the keys {_names(row)}; must have 'messages', or 'input', 'preferred_output' and "
            "'non_preferred_output'",
            None,
        )
    if shape == "prompt" and kind == "chat":
        return "ends with the assistant; a prompt must end with the user", None
    if shape == "chat" and kind == "prompt":
        return "has no message of the assistant, so there is nothing to learn", None
    if shape is not None and kind != shape:
        return f"is a {kind} row, must be a {shape} row like the others", None
    return CHECKS[kind](row), kind


def _unfit(line: bytes, row: object) -> str | None:
    """What a row holds that no body of a request may: it could be kept, and never be told."""
    if line.count(b"[") + line.count(b"{") > MOST_DEPTH and _deeper(row, MOST_DEPTH):
        return f"is nested more than {MOST_DEPTH} levels deep"
    if SURROGATE.search(line):
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return "holds half of a character"
    return None


def _deeper(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is not None and (levels == 0 or any(_deeper(each, levels - 1) for each in inner))


def shape_of(row: Mapping[str, object]) -> Shape | None:
    """What a row is, by its keys."""
    if "preferred_output" in row or "non_preferred_output" in row:
        return "preference"
    if "messages" not in row:
        return None
    messages = row["messages"]
    answered = not isinstance(messages, list) or any(
        isinstance(each, Mapping) and each.get("role") == "assistant" for each in messages
    )
    ends_open = (
        isinstance(messages, list)
        and messages
        and isinstance(messages[-1], Mapping)
        and messages[-1].get("role") == "user"
    )
    return "prompt" if ends_open and not answered else "chat"


def _chat(row: Mapping[str, Any]) -> str | None:
    problem = _messages(row.get("messages"), "messages")
    if problem is not None:
        return problem
    messages = row["messages"]
    if not any(each["role"] == "assistant" for each in messages):
        return "has no message of the assistant, so there is nothing to learn"
    if messages[-1]["role"] != "assistant":
        return f"ends with a message of the {messages[-1]['role']}, must end with the assistant"
    if all(each.get("weight") == 0 for each in messages if each["role"] == "assistant"):
        return "has weight 0 on every message of the assistant, so there is nothing to learn"
    return None


def _preference(row: Mapping[str, Any]) -> str | None:
    prompt = row.get("input")
    if not isinstance(prompt, Mapping):
        return f"has {_kind(prompt)} as 'input', must be an object with 'messages'"
    problem = _messages(prompt.get("messages"), "input.messages")
    if problem is not None:
        return problem
    for key in ("preferred_output", "non_preferred_output"):
        problem = _messages(row.get(key), key)
        if problem is not None:
            return problem
        if [each["role"] for each in row[key]] != ["assistant"]:
            return f"has {len(row[key])} messages in '{key}', must have exactly one, of the assistant"
    if row["preferred_output"][0].get("content") == row["non_preferred_output"][0].get("content"):
        return "prefers an answer to the same answer, so there is nothing to learn"
    return None


def _prompt(row: Mapping[str, object]) -> str | None:
    return _messages(row.get("messages"), "messages")


def _eval(row: Mapping[str, object]) -> str | None:
    for key in ("item", "sample"):
        if not isinstance(row.get(key, {} if key == "sample" else None), Mapping):
            return f"has {_kind(row.get(key))} as '{key}', must be an object"
    return None


CHECKS = {"chat": _chat, "preference": _preference, "prompt": _prompt}


def _messages(value: object, key: str) -> str | None:
    if not isinstance(value, list) or not value:
        return f"has {'an empty list' if value == [] else _kind(value)} as '{key}', must be a list of messages"
    problems = (_message(message) for message in value)
    return next((f"message {at} of '{key}' {problem}" for at, problem in enumerate(problems, start=1) if problem), None)


def _message(message: object) -> str | None:
    if not isinstance(message, Mapping):
        return f"is {_kind(message)}, must be an object with role and content"
    role = message.get("role")
    if role not in ROLES:
        return f"has the role {json.dumps(role)[:40]}, must be one of {', '.join(ROLES)}"
    content = message.get("content")
    if not isinstance(content, str) and not (
        role == "assistant" and (message.get("tool_calls") or message.get("function_call"))
    ):
        if isinstance(content, list):
            return "has a list as content, must be a text (pictures and audio cannot be learnt)"
        return f"has {_kind(content)} as content, must be a text"
    if isinstance(content, str) and not content.strip() and role == "assistant" and not message.get("tool_calls"):
        return "of the assistant is empty"
    if "weight" in message and (
        role != "assistant" or message["weight"] not in (0, 1, None) or isinstance(message["weight"], bool)
    ):
        return "has a weight, which must be 0 or 1 and stand with the assistant's messages only"
    return None


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return {dict: "an object", list: "a list", str: "a text", bool: "true or false"}.get(type(value), "a number")


def _names(row: Iterable[str]) -> str:
    return ", ".join(repr(str(key)[:30]) for key in list(row)[:6]) or "(none)"
