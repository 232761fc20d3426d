"""How a recipe on a server names what lies there: `file:ID`, `job:NAME`, `model:NAME`.

`file:ID` is an uploaded file of the project; `job:NAME` the model that the newest succeeded job of that name or id left
behind; `model:NAME` the newest model that the project has published under that name, `model:NAME@3` a version of it and
`model:NAME@production` what an alias names. All are texts in place of a path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipelines.core.config import REFERENCE as REFERENCE
from pipelines.core.config import Position

Kind = Literal["file", "job", "model"]
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
"""Names of a project's models. Colons, because fine-tuned models are called `ft:base:project:suffix:id`."""
LATEST, BEST, PRODUCTION = "latest", "best", "production"
AUTOMATIC = (LATEST, BEST)
"""Aliases of a model that nobody sets."""
ALIAS = re.compile(r"[a-z][a-z0-9_-]{0,39}")
VERSION = re.compile(r"[1-9][0-9]{0,8}")
TAKES: dict[Kind, tuple[str, ...]] = {
    "file": ("path", "train", "validation", "test", "chat_template", "vectors"),
    "job": ("checkpoint", "pretrained"),
    "model": ("checkpoint", "pretrained"),
}
"""Kind of reference -> the keys of a recipe that it may stand at."""


@dataclass(frozen=True)
class RecipeReference:
    """One reference and where it stands."""

    kind: Kind
    name: str
    place: Position

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def parsed(reference: str) -> tuple[str, str]:
    """(name, selector) of a reference to a model, such as `demo@3` or `demo@production`; the selector is empty for a
    name alone."""
    name, _, selector = reference.partition("@")
    return name, selector


def strings(value: object, place: Position = ()) -> Iterator[tuple[Position, str]]:
    """Every text in plain data, with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from strings(entry, (*place, str(key)))
    elif isinstance(value, list | tuple):
        for position, entry in enumerate(value):
            yield from strings(entry, (*place, position))


def key_of(place: Position) -> str:
    """The key that a value belongs to: of a list its key, of an override path in a matrix the path's last part."""
    words = [part for part in place if isinstance(part, str)]
    return words[-1].rpartition(".")[2] if words else ""


def references(data: object) -> list[RecipeReference]:
    """Every reference at a key that takes one, in the order of the recipe."""
    references = []
    for place, text in strings(data):
        if (parts := REFERENCE.fullmatch(text)) is not None:
            kind: Kind = parts.group(1)  # type: ignore[assignment]
            if key_of(place) in TAKES[kind]:
                references.append(RecipeReference(kind, parts.group(2), place))
    return references


def replaced(data: object, values: Mapping[Position, object], place: Position = ()) -> Any:
    """Plain data with the values at some places exchanged."""
    if place in values:
        return values[place]
    if isinstance(data, Mapping):
        return {key: replaced(entry, values, (*place, str(key))) for key, entry in data.items()}
    if isinstance(data, list | tuple):
        return tuple(replaced(entry, values, (*place, position)) for position, entry in enumerate(data))
    return data
