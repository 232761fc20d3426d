"""Types of plain values as short words, such as `int|float|null`, and what a recipe says when a value has another.

Words: `int`, `float`, `str`, `bool`, `list`, `dict`, `null`, `any`, and `=choice` for one allowed text. A whole number
stands where `float` is asked for; a boolean never stands for a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import float_info

from pipelines.blocks import show
from pipelines.registry import nearest

WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "list": "a list",
    "dict": "a mapping",
    "null": "null",
}
"""How a sentence names each type."""


def fits(value: object, kind: str) -> bool:
    """Whether a plain value has one of the types in `kind`."""
    return any(_is(value, word) for word in kind.split("|"))


def _is(value: object, word: str) -> bool:
    if word == "any":
        return True
    if word.startswith("="):
        return isinstance(value, str) and value == word[1:]
    if value is None or isinstance(value, bool):
        return word == ("null" if value is None else "bool")
    if isinstance(value, int):
        return word == "int" or (word == "float" and abs(value) <= float_info.max)
    if isinstance(value, float):
        return word == "float"
    if isinstance(value, str):
        return word == "str"
    if isinstance(value, Mapping):
        return word == "dict"
    return isinstance(value, list | tuple) and word == "list"


def misfit(value: object, kind: str) -> str | None:
    """The sentence for a value that has none of the types in `kind`, or None."""
    if fits(value, kind):
        return None
    words = kind.split("|")
    choices = [word[1:] for word in words if word.startswith("=")]
    types = [word for word in words if word in WORDS and not (word == "int" and "float" in words)]
    named = [WORDS[word] for word in types]
    if not choices:
        return f"is {show(value)}, must be {' or '.join(named)}"
    allowed = ", ".join([*choices, *named])
    return f"is {show(value)}, must be one of {allowed}.{nearest(str(value), choices)}".rstrip(".")


def as_kind(value: object, kind: str) -> object:
    """`value` as strict dataclasses want it: a whole number becomes a float where only `float` is allowed."""
    words = kind.split("|")
    if isinstance(value, int) and not isinstance(value, bool) and "float" in words and "int" not in words:
        return float(value)
    return list(value) if isinstance(value, tuple) else value


_JSON = {
    "int": "integer",
    "float": "number",
    "str": "string",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
    "null": "null",
}


def json_type(kind: str) -> dict[str, object]:
    """The JSON Schema of a kind."""
    words = kind.split("|")
    if "any" in words:
        return {}
    choices = [word[1:] for word in words if word.startswith("=")]
    types = [_JSON[word] for word in words if not word.startswith("=")]
    if not choices:
        return {"type": types[0] if len(types) == 1 else types}
    return {"anyOf": [{"enum": choices}, *({"type": each} for each in types)]} if types else {"enum": choices}
