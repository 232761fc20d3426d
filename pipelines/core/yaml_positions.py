"""YAML 1.2 with positions: plain values, and the line where each of them stands.

The core schema reads `1e-3` as a number and `no` and `on` as texts. Lists become tuples, because blocks are frozen.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from pipelines.core.config import Position
from pipelines.core.errors import Mistake, RecipeError

LARGEST_FILE = 1 << 20
"""Bytes. A recipe is some hundred lines; more is a mistake or an attack."""
warnings.filterwarnings(
    "ignore", category=ReusedAnchorWarning
)  # a line of the log for each anchor of a document that others wrote
MOST_BITS = 1024
"""Of a whole number: Python refuses to write out those of more than 4,300 digits."""
MOST_BRACKETS = 500
"""That stand open at once, those of texts among them."""
BRACKET = re.compile(r"[\[\]{}]")
MOST_VALUES = 100_000
"""Values after aliases are written out, against files that unfold without end."""


def read_yaml(path: Path) -> tuple[Any, dict[Position, int]]:
    """The file's plain content, and the line of every place in it. Raises RecipeError."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise RecipeError([Mistake("", f"is larger than {LARGEST_FILE} bytes: not a recipe", str(path))])
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError([Mistake("", "there is no such file", str(path))]) from None
    except IsADirectoryError:
        raise RecipeError([Mistake("", "is a folder, must be a YAML file", str(path))]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError([Mistake("", f"could not be read as UTF-8 text: {error}", str(path))]) from None
    return read_yaml_text(text, str(path))


def read_yaml_text(text: str, file: str = "") -> tuple[Any, dict[Position, int]]:
    """As `read_yaml`, for a text that is at hand."""
    if _deepest(text) > MOST_BRACKETS:
        raise RecipeError([Mistake("", f"is nested more than {MOST_BRACKETS} brackets deep: not a recipe", file)])
    parser = YAML(typ="rt", pure=True)
    try:
        marked = parser.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = str(error.problem or error.context or error).split("\n")[0]
        raise RecipeError(
            [Mistake("", f"is not valid YAML: {problem}", file, mark.line + 1 if mark else None)]
        ) from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise RecipeError([Mistake("", f"is not valid YAML: {str(error).splitlines()[0]}", file)]) from None
    except (TypeError, KeyError, AttributeError, IndexError, AssertionError, NotImplementedError) as error:
        # YAML allows what no recipe is, such as mappings as keys, and its parser trips over some of it
        raise RecipeError([Mistake("", f"cannot be read as a recipe: {type(error).__name__}", file)]) from None
    lines: dict[Position, int] = {}
    try:
        return _plain(marked, (), lines), lines
    except (_TooMany, RecursionError):
        raise RecipeError([Mistake("", f"unfolds to more than {MOST_VALUES} values: not a recipe", file)]) from None


def _deepest(text: str) -> int:
    """How many brackets stand open at most; the parser takes minutes over thousands of them."""
    depth = deepest = 0
    for bracket in BRACKET.finditer(text):
        depth = depth + 1 if bracket[0] in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def scalar(text: str) -> Any:
    """One value of the command line, read as it would be in a recipe: `1e-3`, `true`, `[1, 2]`, `{name: lora}`."""
    return _plain(YAML(typ="rt", pure=True).load(text), (), {})


def line_of(place: Position, lines: Mapping[Position, int]) -> int | None:
    """The line of `place`, or of the nearest place that holds it."""
    for length in range(len(place), 0, -1):
        if place[:length] in lines:
            return lines[place[:length]]
    return None


class _TooMany(Exception):
    pass


def _plain(value: object, place: Position, lines: dict[Position, int], count: list[int] | None = None) -> Any:
    count = [0] if count is None else count
    count[0] += 1
    if count[0] > MOST_VALUES:
        raise _TooMany
    if isinstance(value, Mapping):
        plain = {}
        marks = getattr(value, "lc", None)
        for key, entry in value.items():
            below = (*place, str(key))
            _encodable(str(key), place)
            if marks is not None and marks.data and key in marks.data:
                lines[below] = marks.data[key][0] + 1
            plain[str(key)] = _plain(entry, below, lines, count)
        return plain
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        marks = getattr(value, "lc", None)
        entries = []
        for position, entry in enumerate(value):
            below = (*place, position)
            if marks is not None and marks.data and position in marks.data:
                lines[below] = marks.data[position][0] + 1
            entries.append(_plain(entry, below, lines, count))
        return tuple(entries)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise RecipeError(
            [
                Mistake(
                    ".".join(map(str, place)), f"is a whole number of more than {MOST_BITS} bits: no recipe needs one"
                )
            ]
        )
    if isinstance(value, str) and not value.isascii():
        _encodable(value, place)
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return bool(value) if type(value).__name__ == "ScalarBoolean" else str(value)


def _encodable(text: str, place: Position) -> None:
    """Raises RecipeError for a text with half of a character, which an escape such as "\\ud800" makes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RecipeError(
            [Mistake(".".join(map(str, place)), "holds half of a character, must be Unicode text")]
        ) from None


def write_yaml(data: object) -> str:
    """Plain data as YAML text that `read_yaml_text` reads back equal."""
    from io import StringIO

    writer = YAML(typ="rt", pure=True)
    writer.width = 4096
    out = StringIO()
    writer.dump(_writable(data), out)
    return out.getvalue()


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*")
"""Texts that need no quotes; words that would read as something else are caught below."""


def _writable(value: object) -> Any:
    if isinstance(value, Mapping):
        return {_writable(key): _writable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(entry) for entry in value]
    if isinstance(value, str) and (not _PLAIN.fullmatch(value) or value.lower() in ("null", "true", "false")):
        return DoubleQuotedScalarString(value)
    return value
