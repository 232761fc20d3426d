"""How data sets write down who said what, and one form for all of them.

Known formats: `messages` (role and content, as OpenAI and TRL have it), `sharegpt` (from and value), `alpaca`
(instruction, input, output; Taori et al. 2023, "Stanford Alpaca"), `prompt_completion` (TRL's names, of texts or of
lists of messages) and `text`. The format is told by the columns, and by the first row where columns leave it open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from pipelines.core.registry import nearest

FormatName = Literal["messages", "sharegpt", "alpaca", "prompt_completion", "text"]
FORMATS: tuple[str, ...] = get_args(FormatName)

ROLES = {
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "model"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function", "function_response", "observation"), "tool"),
}
"""Names of speakers in the wild, and the one of the three roles, or a tool's, that each has in a chat template."""
COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "messages": (("messages",), ("system",)),
    "sharegpt": (("conversations",), ("system",)),
    "alpaca": (("instruction", "output"), ("input", "system", "history")),
    "prompt_completion": (("prompt", "completion"), ("system",)),
    "text": (("text",), ()),
}
"""By format: the columns that it must have, and those that it may have."""


class Unreadable(ValueError):
    """A row that is not what its format promises; the message is a sentence without its subject."""


@dataclass(frozen=True)
class Dialogue:
    """What one row says, and which of it is to be learnt."""

    messages: tuple[Mapping[str, Any], ...]
    """Each with `role` and `content`; the last is the assistant's."""
    learnt: tuple[bool, ...]
    """Which messages are answers that are learnt."""
    templated: bool = True
    """Whether a chat template joins the messages. Otherwise they are one text, in this order."""
    cut: bool = False
    """Whether the last answer stopped before its end: then no end is to be learnt behind it."""

    @property
    def prompt(self) -> str:
        """What the last answer answers, as people read it."""
        before = self.messages[:-1]
        if len(before) == 1:
            return str(before[0]["content"])
        return "\n\n".join(f"{each['role']}: {each['content']}" for each in before)

    @property
    def completion(self) -> str:
        """The last answer."""
        return str(self.messages[-1]["content"])

    def in_turns(self) -> Dialogue:
        """The same for a chat template, where it was one text."""
        return self if self.templated or len(self.messages) < 2 else replace(self, templated=True)


def detect(columns: Sequence[str], first: Mapping[str, object], given: Mapping[str, str]) -> str:
    """The format of rows with these columns. `given` are the format's names for them. Raises Unreadable."""
    names = {*columns, *given}
    for name in ("messages", "conversations", "conversation"):
        cell = first.get(given.get(name, name))
        if name in names and isinstance(cell, list) and cell and isinstance(cell[0], Mapping):
            return "sharegpt" if "from" in cell[0] else "messages"
    for name, (needed, _) in COLUMNS.items():
        if set(needed) <= names:
            return name
    raise Unreadable(no_format(columns, COLUMNS, "{prompt: question, completion: answer}"))


def columns_of(name: str, columns: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """The column behind each of the format's names. Raises Unreadable where one is missing."""
    needed = COLUMNS[name][0]
    spoken = {
        role: next(each for each in (role, "messages", "conversations", "conversation") if each in columns)
        for role in needed
        if role in ("messages", "conversations") and {role, "messages", "conversations", "conversation"} & set(columns)
    }
    return columns_behind(name, COLUMNS[name], columns, {**spoken, **given})


def no_format(
    columns: Sequence[str], table: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]], example: str
) -> str:
    """The sentence, without its subject, for columns that are of no format of the table."""
    shown = "; ".join(f"{name}: {', '.join(needed)}" for name, (needed, _) in table.items())
    return (
        f"has columns ({', '.join(columns)}) of no known format ({shown}); name the format with 'format' and "
        "its columns with "
        f"'columns', such as columns: {example}"
    )


def columns_behind(
    name: str, roles: tuple[tuple[str, ...], tuple[str, ...]], columns: Sequence[str], given: Mapping[str, str]
) -> dict[str, str]:
    """The column behind each name of a format, those that it must have and those that it may. Raises Unreadable
    where one is missing."""
    needed, optional = roles
    column_of = {}
    for role in (*needed, *optional):
        column = given.get(role, role)
        if column in columns:
            column_of[role] = column
        elif role in needed or role in given:
            raise Unreadable(
                f"has no column '{column}', which the format {name} reads.{nearest(column, columns)} Columns "
                f"found: {', '.join(columns)}"
            )
    return column_of


def read(name: str, cells: Mapping[str, object]) -> Dialogue:
    """One row as a dialogue. `cells` are by the format's own names. Raises Unreadable."""
    return READERS[name](cells)


def _text(cells: Mapping[str, object]) -> Dialogue:
    return Dialogue(({"role": "assistant", "content": _string(cells, "text")},), (True,), templated=False)


def _prompt_completion(cells: Mapping[str, object]) -> Dialogue:
    prompt, completion = cells.get("prompt"), cells.get("completion")
    if isinstance(prompt, list) or isinstance(completion, list):
        before = messages_of("prompt", prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}])
        after = messages_of(
            "completion", completion if isinstance(completion, list) else [{"role": "assistant", "content": completion}]
        )
        messages = _opened(cells, [*before, *after])
        beginning = len(messages) - len(after)
        return _dialogue(
            messages, [at >= beginning and each["role"] == "assistant" for at, each in enumerate(messages)]
        )
    if not isinstance(prompt, str):
        raise Unreadable(f"holds {_shown(prompt)} in the column 'prompt', must be a text, or a list of messages")
    before = _opened(cells, [{"role": "user", "content": prompt}])
    messages = [*before, {"role": "assistant", "content": _string(cells, "completion")}]
    return Dialogue(tuple(messages), (*[False] * len(before), True), templated=len(before) > 1)


def _alpaca(cells: Mapping[str, Any]) -> Dialogue:
    messages: list[Mapping[str, Any]] = []
    for turn in cells.get("history") or ():
        if not isinstance(turn, list | tuple) or len(turn) != 2:
            raise Unreadable(
                f"holds {_shown(turn)} in the column 'history', must be pairs of an instruction and its answer"
            )
        messages += [{"role": "user", "content": str(turn[0])}, {"role": "assistant", "content": str(turn[1])}]
    instruction, more = _string(cells, "instruction").strip(), cells.get("input") or ""
    if not isinstance(more, str):
        raise Unreadable(f"holds {_shown(more)} in the column 'input', must be a text")
    user_message: dict[str, Any] = {
        "role": "user",
        "content": f"{instruction}\n\n{more}" if more.strip() else instruction,
    }
    if more.strip():  # the template `alpaca` shows the two apart, as the paper's prompt does
        user_message |= {"instruction": instruction, "input": more}
    messages = _opened(cells, [*messages, user_message, {"role": "assistant", "content": _string(cells, "output")}])
    return _dialogue(messages, [each["role"] == "assistant" for each in messages])


def _conversation(column: str) -> Callable[[Mapping[str, Any]], Dialogue]:
    def reader(cells: Mapping[str, object]) -> Dialogue:
        messages = messages_of(column, cells.get(column))
        while messages and messages[-1]["role"] != "assistant":  # a question without an answer teaches nothing
            messages = messages[:-1]
        if not messages:
            raise Unreadable(f"has no answer in the column '{column}': no message is the assistant's")
        weights = [each.get("weight") for each in messages]
        if wrong := [weight for weight in weights if weight not in (None, 0, 1)]:
            raise Unreadable(f"has a message of weight {wrong[0]!r}, must be 0 (not learnt) or 1")
        plain = [{key: value for key, value in each.items() if key != "weight"} for each in messages]
        learnt = [each["role"] == "assistant" and weight != 0 for each, weight in zip(messages, weights, strict=True)]
        opened = _opened(cells, plain)
        return _dialogue(opened, [False] * (len(opened) - len(plain)) + learnt)

    return reader


def _dialogue(messages: Iterable[Mapping[str, object]], learnt: Iterable[bool]) -> Dialogue:
    return Dialogue(tuple(messages), tuple(learnt))


def _opened(cells: Mapping[str, object], messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, Any]]:
    """The messages behind what the column `system` says, where there is one."""
    system = cells.get("system")
    if isinstance(system, str) and system.strip() and (not messages or messages[0]["role"] != "system"):
        return [{"role": "system", "content": system}, *messages]
    return list(messages)


def messages_of(column: str, cell: object) -> list[Mapping[str, Any]]:
    """The messages of a list, under the names that chat templates know."""
    if not isinstance(cell, list | tuple) or not cell:
        raise Unreadable(
            f"holds {_shown(cell)} in the column '{column}', must be a list of messages with role and content"
        )
    messages: list[Mapping[str, Any]] = []
    for message in cell:
        if not isinstance(message, Mapping):
            raise Unreadable(f"holds {_shown(message)} among its messages, must be an object with role and content")
        speaker = message.get("role", message.get("from"))
        role = ROLES.get(str(speaker).lower())
        if role is None:
            raise Unreadable(f"has a message by {speaker!r}, must be one of {', '.join(ROLES)}")
        content = message.get("content", message.get("value"))
        calls = message.get("tool_calls")
        if not isinstance(content, str) and not calls:
            raise Unreadable(f"has a message by {speaker!r} that holds {_shown(content)}, must be a text")
        rest = {
            key: value
            for key, value in message.items()
            if key not in ("role", "from", "content", "value") and value is not None
        }
        messages.append({"role": role, "content": content or "", **rest})
    return messages


def _string(cells: Mapping[str, object], column: str) -> str:
    value = cells.get(column)
    if not isinstance(value, str):
        raise Unreadable(f"holds {_shown(value)} in the column '{column}', must be a text")
    return value


def _shown(value: object) -> str:
    return "nothing" if value is None else f"{str(value)[:40]!r} ({type(value).__name__})"


READERS: dict[str, Callable[[Mapping[str, Any]], Dialogue]] = {
    "messages": _conversation("messages"),
    "sharegpt": _conversation("conversations"),
    "alpaca": _alpaca,
    "prompt_completion": _prompt_completion,
    "text": _text,
}
"""How each format is read."""
