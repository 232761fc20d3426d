"""Somebody's prediction and reference files, read strictly: what is wrong with them is one sentence."""

from __future__ import annotations

import json
from collections.abc import Container, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipelines.core.errors import CommandError, DataError
from pipelines.data.tables import read_file

SHOWN = 3
"""Ids that a sentence names."""

Id = TypeVar("Id", bound=Hashable)
"""What a file calls an example: a text or a row's number."""


def listed(ids: Iterable[object]) -> str:
    """The first few of many ids."""
    every = list(ids)
    more = f", … ({len(every)} in all)" if len(every) > SHOWN else ""
    return ", ".join(str(each) for each in every[:SHOWN]) + more


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    if not text.strip():
        raise CommandError(f"{path} is empty; give a file with data in it")
    return text


def read_json(path: Path) -> object:
    """A JSON file. Raises CommandError where it is no JSON, has a key twice, or a number that is not finite."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        record = dict(pairs)
        if len(record) < len(pairs):
            names = [name for name, _ in pairs]
            twice = (
                list(dict.fromkeys(name for name in names if names.count(name) > 1))
                if len(names) < 1000
                else _repeated(names)
            )
            raise CommandError(f"{path} has {len(twice)} ids more than once: {listed(twice)}; give each one prediction")
        return record

    def refuse(word: str) -> object:
        raise CommandError(f"{path} holds {word}, must hold finite numbers")

    try:
        return json.loads(_text(path), object_pairs_hook=once, parse_constant=refuse)
    except RecursionError:
        raise CommandError(f"{path} is nested too deeply to be what it should be") from None
    except ValueError as error:
        raise CommandError(f"{path} is not valid JSON: {error}") from None


def _repeated(values: Iterable[Id]) -> list[Id]:
    seen: set[Any] = set()
    repeated: dict[Any, None] = {}
    for value in values:
        if value in seen:
            repeated[value] = None
        seen.add(value)
    return list(repeated)


def once_each(ids: Sequence[Hashable], path: Path, what: str) -> None:
    """Raises CommandError where an id stands twice."""
    if twice := _repeated(ids):
        raise CommandError(f"{path} has the same {what} more than once: {listed(twice)}; give each only once")


def columns_of(path: Path, wanted: Sequence[str]) -> dict[str, list[Any]]:
    """The columns of a TSV, CSV, Parquet, JSONL or JSON file by name, all of them. Raises CommandError where a
    `wanted` one is not there."""
    if not path.is_file():
        raise CommandError(f"{path} is no file")
    if path.suffix.lower() == ".tsv":
        columns = _tsv(path)
    else:
        try:
            table = read_file(path)
        except DataError as error:
            raise CommandError(str(error)) from None
        columns = {name: table[name].to_pylist() for name in table.column_names}
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise CommandError(
            f"{path} has no column '{missing[0]}'; it needs {', '.join(wanted)}, and has {', '.join(columns) or 'none'}"
        )
    if not next(iter(columns.values()), ()):
        raise CommandError(f"{path} holds no rows; give a file with data in it")
    return columns


def _tsv(path: Path) -> dict[str, list[Any]]:
    """Cells as they stand between tabs, as GLUE's own files are; quotes mean something only where that does not fit."""
    lines = [line.removesuffix("\r") for line in _text(path).split("\n")]
    rows = [line.split("\t") for line in lines if line]
    header = [name.strip() for name in rows[0]]
    if all(len(row) == len(header) for row in rows) and len(set(header)) == len(header):
        return {name: [row[at] for row in rows[1:]] for at, name in enumerate(header)}
    try:
        table = read_file(path)
    except DataError as error:
        raise CommandError(str(error)) from None
    return {name: table[name].to_pylist() for name in table.column_names}


def missing_ids(wanted: Iterable[Id], given: Container[Id]) -> list[Id]:
    """The ids that have no prediction, in the order of the references."""
    return [each for each in wanted if each not in given]
