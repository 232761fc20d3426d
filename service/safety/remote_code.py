"""Code of a checkpoint's repository: a recipe runs it only where an admin allowed that repository at that commit.

Who allows: the server (`finery serve --allow-remote-code owner/name@COMMIT`) for every project, or an admin over the
API for one. `model.trust_remote_code` stands in the recipe's own model, and a study cannot exchange that model, so
that what was checked is what runs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pipelines.core.config import ConfigIssue, Position, show

KEY = "trust_remote_code"
PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*@[0-9a-f]{40}")
"""How a repository and a commit are written together: `owner/name@` and 40 hexadecimal digits."""
MOST = 200
"""Repositories that one list allows."""


def asks(data: object) -> bool:
    """Whether a recipe, as plain data, would run code of its checkpoint."""
    return any(value not in (None, False) for _, value in _at_key(data))


def unfit_code(data: Any, allowed: Collection[str]) -> Iterable[ConfigIssue]:
    """Every place where a recipe would run code that nobody allowed. `allowed` holds `owner/name@COMMIT`."""
    model = data.get("model") if isinstance(data, Mapping) else None
    for place, value in _at_key(data):
        if value in (None, False) and place == ("model", KEY):
            continue
        if place != ("model", KEY):
            yield place, f"{KEY} stands in the recipe's own model only: a study runs one code"
            continue
        assert isinstance(model, Mapping)
        checkpoint, revision = model.get("checkpoint"), model.get("revision")
        if f"{checkpoint}@{revision}" not in allowed:
            yield place, refusal(checkpoint, revision)
        for part in ("matrix", "study"):
            for other in _exchanges(data.get(part), (part,)):
                yield other, f"is another model, which a study with {KEY} cannot have: its code would be another too"


def refusal(checkpoint: object, revision: object) -> str:
    """The sentence for code that is not allowed."""
    named = f"{checkpoint}@{revision}"
    if PINNED.fullmatch(named) is None:
        return (
            "would run code on the server, which an admin allows for a Hub repository (checkpoint: owner/name) at a "
            "full commit (revision: 40 hexadecimal digits) only"
        )
    return (
        f"would run code of {show(checkpoint)} at {revision}, which this server does not allow; an admin does so with "
        f"finery serve --allow-remote-code {named}, or for one project with PUT /api/v1/projects/NAME"
    )


def _at_key(value: object, place: Position = ()) -> Iterable[tuple[Position, Any]]:
    """Every value whose key, or override path in a matrix, ends with the key."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if str(key).rpartition(".")[2] == KEY:
                yield (*place, str(key)), entry
            yield from _at_key(entry, (*place, str(key)))
    elif isinstance(value, list | tuple):
        for position, entry in enumerate(value):
            yield from _at_key(entry, (*place, position))


def _exchanges(value: object, place: Position) -> Iterable[Position]:
    """Every key of a matrix that is the model or leads into it."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if str(key).partition(".")[0] == "model":
                yield (*place, str(key))
            else:
                yield from _exchanges(entry, (*place, str(key)))
    elif isinstance(value, list | tuple):
        for position, entry in enumerate(value):
            yield from _exchanges(entry, (*place, position))


__all__ = ["KEY", "MOST", "PINNED", "asks", "refusal", "unfit_code"]
