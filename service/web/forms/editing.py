"""Changes to a draft by the form's buttons: stages and rows that are added, removed and moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def edited(draft: Mapping[str, Any], order: str) -> dict[str, Any]:
    """The draft after `add stages supervised`, `add stages.0.datasets`, `remove stages.1`, `up stages.1` or `down stages.1`.

    An order that fits nothing changes nothing.
    """
    word, _, rest = order.partition(" ")
    path, _, kind = rest.partition(" ")
    data: dict[str, Any] = _lists(draft)
    if word == "add":
        rows = _at(data, path, make=True)
        if isinstance(rows, list):
            rows.append({"stage": kind} if path == "stages" else {})
    elif word in ("remove", "up", "down"):
        holder, _, number = path.rpartition(".")
        rows = _at(data, holder)
        if isinstance(rows, list) and is_place(number) and int(number) < len(rows):
            _reorder(rows, word, int(number))
    return data


def is_place(text: str) -> bool:
    """Whether a text is the number of a row: `²` is a digit too, and Python reads no number of 5,000 digits."""
    return text.isascii() and text.isdigit() and len(text) < 6


def _reorder(rows: list[Any], word: str, at: int) -> None:
    if word == "remove":
        del rows[at]
    elif (to := at + (1 if word == "down" else -1)) in range(len(rows)):
        rows[at], rows[to] = rows[to], rows[at]


def _lists(value: Any) -> Any:
    """A copy whose sequences can be changed."""
    if isinstance(value, Mapping):
        return {key: _lists(entry) for key, entry in value.items()}
    return [_lists(entry) for entry in value] if isinstance(value, list | tuple) else value


def _at(data: Any, path: str, make: bool = False) -> Any:
    parts = path.split(".") if path else []
    here = data
    for place, part in enumerate(parts):
        if isinstance(here, list):
            if not is_place(part) or int(part) >= len(here):
                return None
            here = here[int(part)]
        elif isinstance(here, dict):
            if part not in here:
                if not make:
                    return None
                here[part] = [] if place == len(parts) - 1 else {}
            here = here[part]
        else:
            return None
    return here


def field_of(key: str, ids: list[str | None], known: set[str]) -> str:
    """The field that a mistake belongs to: the nearest one to its key that the form has; empty for the whole recipe.

    `ids` are those of the draft's stages, the default ones too.
    """
    parts = key.replace("[", ".").replace("]", "").split(".")
    if len(parts) > 1 and parts[0] == "stages":
        parts[1] = str(ids.index(parts[1])) if parts[1] in ids else parts[1]
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in known:
            return name
    return ""
