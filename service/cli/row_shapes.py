"""Rows that are known by their shape: lists of words and tags, questions with options, messages, preferences.

Each kind of task says itself which rows are its own (`TaskKind.recognise`). What no kind knows has a text and a label,
whose columns `service.cli.columns` chooses, or nothing but texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.core.errors import CommandError
from pipelines.core.files import JSONObject
from pipelines.core.registry import TASK_KINDS
from service.cli.columns import Column, Table

FEWEST_WORDS = 3
"""Words a cell, on average, from which a column holds texts to learn a language from."""


@dataclass(frozen=True)
class ShapeChoice:
    """The kind of task whose rows these are."""

    kind: str
    keys: JSONObject
    """What describes them as a task of the kind."""
    texts: tuple[Column, ...]
    """Columns of plain texts among those that are read."""
    unused: tuple[str, ...]
    words: float
    """Words a row, on average."""
    longest: int
    """Words that 95 % of the rows stay below."""
    epochs: int = 3
    """Passes over the rows."""

    @property
    def named(self) -> str:
        """What the stage is called after."""
        return self.kind

    @property
    def about(self) -> str:
        """What the rows hold."""
        return f"a task of the kind {self.kind}: {TASK_KINDS.load(self.kind).rows_hold}"


def shape_of(table: Table, kind: str | None, label: str | None) -> ShapeChoice | None:
    """The kind of task whose shape the rows have; None where no kind knows them. Raises CommandError for rows that more
    than one knows, and where they are not of the kind that is asked for."""
    if kind is not None and kind not in TASK_KINDS:
        raise CommandError(f"--kind: {TASK_KINDS.unknown(kind)}")
    if label is not None:
        table.column(label)
    found = {name: keys for name in ([kind] if kind else TASK_KINDS) if (keys := _recognised(table, name, label))}
    if len(found) > 1:
        raise CommandError(
            f"{table.file} may be of several kinds: "
            + "; ".join(f"--kind {name} takes it for {TASK_KINDS.load(name).rows_hold}" for name in found)
        )
    if not found:
        if kind is not None and not TASK_KINDS.load(kind).labels_texts:
            raise CommandError(
                f"{table.file} does not look like the kind {kind}{_of(kind)}. Columns found: {', '.join(table.names)}; "
                "name them as the kind does, or write the recipe by hand"
            )
        return None
    name, keys = next(iter(found.items()))
    used = {each.partition(".")[0] for value in keys.values() for each in _strings(value)} & set(table.names)
    read = [column for column in table.columns if column.name in used or not used]
    counts = sorted(sum(len(text.split()) for each in read for text in _strings(row[each.name])) for row in table.cells)
    return ShapeChoice(
        name,
        keys,
        tuple(each for each in read if each.kind == "text" and each.words >= FEWEST_WORDS and not each.is_id),
        tuple(each for each in table.names if used and each not in used),
        sum(counts) / len(counts),
        counts[min(len(counts) - 1, math.ceil(0.95 * len(counts)))],
    )


def known_shapes() -> str:
    """All that is known by its shape, in words."""
    return "; ".join(f"{name}{_of(name)}" for name in TASK_KINDS if TASK_KINDS.load(name).rows_hold)


def _of(kind: str) -> str:
    held = TASK_KINDS.load(kind).rows_hold
    return f" ({held})" if held else ""


def _recognised(table: Table, kind: str, label: str | None) -> JSONObject | None:
    try:
        keys: JSONObject | None = TASK_KINDS.load(kind).recognise(table.cells, label)
    except ValueError as why:
        raise CommandError(f"{table.file} {why}") from None
    return keys


def _strings(value: Any) -> Iterator[str]:
    """Every text in a cell."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)
