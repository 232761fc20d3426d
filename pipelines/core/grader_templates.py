"""Templates of graders: `{{item.answer}}`, `{{sample.output_text}}`, `{{sample.output_json.steps[0].title}}`.

A template is text with paths in it, and a path is all that may stand between the braces: it is looked up in plain
data and nothing is run. Texts are put in as they are, everything else as JSON. Where `{{…}}` holds more than a path (a
filter, a call, an operator), or `{%` or half of such braces stands in the text, the template is refused: it was written
for another language, or wrongly, and leaving it in place would grade by something else than its author meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

LONGEST = 20_000
"""Characters of a template."""
LONGEST_RESULT = 200_000
"""Characters of what becomes of it."""
MOST_PATHS = 100
MOST_STEPS = 20
BRACES = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
CLOSED = re.compile(r"\}\}")
PATH = re.compile(r"\s*(item|sample)((?:\.[^\W\d][\w-]*|\.\d+|\[\d+\]|\['[^']*'\]|\[\"[^\"]*\"\])*)\s*")
STEP = re.compile(r"\.([^\W\d][\w-]*)|\.(\d+)|\[(\d+)\]|\['([^']*)'\]|\[\"([^\"]*)\"\]")
Step = str | int


class Unfilled(LookupError):
    """A path leads nowhere; one sentence."""

    def __init__(self, namespace: str, message: str) -> None:
        self.namespace = namespace
        """`item`: the row lacks it; `sample`: the answer does."""
        super().__init__(message)


@dataclass(frozen=True)
class Path:
    """A path in a template."""

    written: str
    namespace: str
    steps: tuple[Step, ...]

    def value(self, namespaces: Mapping[str, Any]) -> Any:
        """What lies there. Raises Unfilled; null counts as missing, because data sets fill up with it what rows
        lack."""
        value = namespaces.get(self.namespace)
        for step in self.steps:
            if isinstance(step, str) and isinstance(value, Mapping):
                value = value.get(step)
            elif isinstance(step, int) and isinstance(value, list | tuple):
                value = value[step] if step < len(value) else None
            else:
                value = None
        if value is None:
            raise Unfilled(self.namespace, f"there is no {self.written}")
        return value


@dataclass(frozen=True)
class GraderTemplate:
    """A template that was read."""

    parts: tuple[str | Path, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """What it reads."""
        return tuple(part for part in self.parts if isinstance(part, Path))

    def filled(self, namespaces: Mapping[str, Any], guard: Callable[[str], str] = str) -> str:
        """The text with everything in its place, what is put in as `guard` leaves it. Raises Unfilled."""
        filled = ""
        for part in self.parts:
            filled += part if isinstance(part, str) else guard(text_of(part.value(namespaces)))
            if len(filled) > LONGEST_RESULT:
                raise Unfilled("item", f"a template comes to more than {LONGEST_RESULT} characters")
        return filled


MARKUP = re.compile(
    r"<\|[^<>|\n]{1,40}\|>|</?s>|<</?SYS>>|\[/?INST\]"
    r"|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|<[｜][^<>\n]{1,40}[｜]>"
)
"""Tokens of known chat templates that begin or end a turn."""


def quoted(text: str, specials: Iterable[str] = ()) -> str:
    """The text with everything in it broken by a space that a tokenizer could take for the end of a turn.

    Parameters: specials: the special tokens of the tokenizer that will read it, beside those of known templates.
    """
    broken = MARKUP.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
    for token in sorted({each for each in specials if each.strip()}, key=len, reverse=True):
        broken = broken.replace(token, f"{token[0]} {token[1:]}" if len(token) > 1 else " ")
    return broken


def text_of(value: object) -> str:
    """A value as it stands in a filled template: a text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


@lru_cache(maxsize=512)
def read_template(text: str) -> GraderTemplate:
    """The template behind a text. Raises ValueError with one sentence."""
    if len(text) > LONGEST:
        raise ValueError(f"has {len(text)} characters, must have at most {LONGEST}")
    if "{%" in text:
        raise ValueError("holds '{%', but templates hold paths such as {{item.answer}} and no statements")
    parts: list[str | Path] = []
    end = 0
    for match in BRACES.finditer(text):
        parts += [text[end : match.start()], read_path(match.group(1))]
        end = match.end()
    parts.append(text[end:])
    _refuse_halves(" ".join(part for part in parts if isinstance(part, str)))
    template = GraderTemplate(tuple(part for part in parts if part))
    if len(template.paths) > MOST_PATHS:
        raise ValueError(f"reads {len(template.paths)} paths, must read at most {MOST_PATHS}")
    return template


def _refuse_halves(text: str) -> None:
    """Raise ValueError where `{{` or `}}` stands alone in what is no path. The end of nested JSON, whose braces were
    opened one by one, is text."""
    half = "{{" if "{{" in text else None
    for match in CLOSED.finditer(text):
        before = text[: match.start()]
        if before.count("{") - before.count("}") < 2:
            half = half or "}}"
    if half is not None:
        raise ValueError(
            f"holds '{half}' without its other half; a path stands between both, as in {{{{item.answer}}}}, and braces "
            "that are text stand apart, as in '{ {'"
        )


def read_path(text: str) -> Path:
    """`item.steps[0].title`. Raises ValueError with one sentence."""
    match = PATH.fullmatch(text)
    if match is None:
        raise ValueError(
            f"holds {{{{{text[:60]}}}}}, but between braces stands a path alone, such as item.answer, "
            "sample.output_text or sample.output_json.name"
        )
    steps = tuple(_step(found) for found in STEP.finditer(match.group(2)))
    if len(steps) > MOST_STEPS:
        raise ValueError(f"has a path of {len(steps)} steps, must have at most {MOST_STEPS}")
    return Path(text.strip(), match.group(1), steps)


def _step(match: re.Match[str]) -> Step:
    name, number, place, single, double = match.groups()
    return int(number or place) if number or place else str(name or single or double or "")
