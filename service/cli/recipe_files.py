"""What a recipe names on this machine, before it is handed to a server: data to upload, and files to put in place.

A data path stands for the files that a run here would read: of a folder, those of the one split
(`pipelines.core.data_files`). An upload is one file whose only split is `train`. Several files are therefore joined
into one of the same kind, which holds the same rows in the same order: weights, and limits such as `max_train_samples`,
mean what they meant.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from pipelines.core.config import ConfigIssue, Position, flatten
from pipelines.core.data_files import ENDINGS, beside, split_of_role, splits_at
from pipelines.core.data_limits import LONGEST_CELL, first_line, opened_parquet
from pipelines.core.errors import DataError
from pipelines.core.launch import Launch
from pipelines.core.overrides import RecipeSource
from pipelines.core.principles import DEFAULT, read_principles
from service.safety.references import REFERENCE, TAKES, key_of, strings

ROLES = ("train", "validation", "test")
"""Keys of a task that name data; `path` is the only other key that does."""
JSON = {".json", ".jsonl"}
SEPARATORS = {".csv": ",", ".tsv": "\t"}
REMEDY = "put them into one file before submitting"


@dataclass(frozen=True)
class NamedFiles:
    """Files that a recipe names at one place."""

    place: Position
    text: str
    """As the recipe has it."""
    files: tuple[Path, ...]
    """In the order in which they are read."""
    changes: Mapping[Position, Any] = field(default_factory=dict)
    """What else must change where an upload stands for them: it has no other split and no configurations."""


def local_files(source: RecipeSource) -> list[NamedFiles]:
    """The places of a recipe that name files of this machine. Raises RecipeError."""
    named: list[NamedFiles] = []
    issues: list[ConfigIssue] = []
    for place, text in strings(source.data):
        key = key_of(place)
        if REFERENCE.fullmatch(text) or "\0" in text or "://" in text:
            continue
        try:
            if key in TAKES["model"] and os.path.isdir(_absolute(text, source.folder)):
                raise ValueError(
                    f"'{text}' is a folder of this machine, and models are not uploaded; submit the recipe that trains "
                    "it and write job:NAME or model:NAME, or a Hub name"
                )
            if key in TAKES["file"] and (each := _named(place, text, source)) is not None:
                named.append(each)
        except (ValueError, DataError) as error:
            issues.append((place, str(error)))
    if issues:
        raise source.error(issues)
    return named


def _named(place: Position, text: str, source: RecipeSource) -> NamedFiles | None:
    """The files at one place; None where it names none. Raises ValueError, DataError."""
    if _is_tokenizer(place):  # `tokenizer: {train: wordpiece}` names an algorithm
        return None
    key = key_of(place)
    if key != "path" and key not in ROLES:
        file = _absolute(text, source.folder)
        return NamedFiles(place, text, (file,)) if os.path.isfile(file) else None
    path = beside(text, source.folder)
    if path is None:
        return None
    if os.path.isfile(path) and Path(path).suffix.lower() not in ENDINGS:
        raise ValueError(f"'{text}' has an unknown format; known file endings: {', '.join(ENDINGS)}")
    block = _block(source.data, place)
    if os.path.isdir(path) and _is_varied(place, source):
        raise ValueError(f"'{text}' is a folder, and the matrix varies what is read of it; name files instead")
    splits = splits_at(path, block.get("name")) or {}
    split = block.get("split", "train") if key == "path" else split_of_role(key, splits)
    if split not in splits:
        raise ValueError(f"'{text}' has no split '{split or key}'. Splits found: {', '.join(splits)}")
    if key == "path" and not block and len(splits) > 1:  # a value of a matrix, whose block stands elsewhere
        raise ValueError(f"'{text}' has the splits {', '.join(splits)}; name the files of the one that is read")
    changes: dict[Position, Any] = {}
    if split != "train" and key == "path":
        changes[*place[:-1], "split"] = "train"
    if block.get("name") is not None:
        others = [block[role] for role in ROLES if isinstance(block.get(role), str) and key != "path"]
        if there := [each for each in others if beside(each, source.folder) is None]:
            raise ValueError(
                f"'{text}' is a folder of this machine and '{there[0]}' is not, so that 'name' cannot stand for both "
                "once the folder's files are uploaded; name the files instead"
            )
        changes[*place[:-1], "name"] = None
    return NamedFiles(place, text, splits[split], changes)


def _is_tokenizer(place: Position) -> bool:
    return place[0] == "tokenizer" or (place[0] == "matrix" and "tokenizer.train" in place)


def _absolute(text: str, folder: Path) -> Path:
    return Path(os.path.abspath(folder / os.path.expanduser(text)))


def _block(data: Any, place: Position) -> Mapping[str, Any]:
    """The block that has the key at a place; empty where the place is a value of a matrix."""
    for part in place[:-1]:
        data = data[part] if isinstance(part, int) else next(data[key] for key in data if str(key) == part)
    return data if isinstance(data, Mapping) and place[-1] in ("path", *ROLES) else {}


def _is_varied(place: Position, source: RecipeSource) -> bool:
    """Whether the matrix sets `name` or `split` of the block that has the key at a place."""
    blocks = [".".join(map(str, place[:-1]))]
    if place[0] == "stages" and isinstance(place[1], int):
        blocks.append(".".join(map(str, ("stages", source.ids[place[1]], *place[2:-1]))))
    return not {f"{block}.{key}" for block in blocks for key in ("name", "split")}.isdisjoint(
        _paths_of(source.data.get("matrix"))
    )


def _paths_of(matrix: object) -> Iterator[str]:
    """Every override path of a matrix, `[0]` written as `.0`."""
    for key, value in matrix.items() if isinstance(matrix, Mapping) else ():
        yield re.sub(r"\[(\d+)\]", r".\1", str(key))
        yield from _paths_of(value)


def placed(source: RecipeSource, say: Callable[[str], None]) -> dict[Position, Any]:
    """What files that do not travel say, by the place of their name: principles, and accelerate's configuration.

    Raises RecipeError.
    """
    changes: dict[Position, Any] = {}
    issues: list[ConfigIssue] = []
    for place, text in strings(source.data):
        if key_of(place) == "constitution" and text != DEFAULT:
            try:
                changes[place] = read_principles(text, source.folder)
            except ValueError as error:
                issues.append((place, str(error)))
        elif place[0] == "matrix" and key_of(place) == "config" and any("launch" in str(part) for part in place):
            issues.append((place, f"'{text}' is a file, which cannot be sent from here; write what it says"))
    launch = source.data.get("launch")
    if isinstance(launch, Mapping) and isinstance(launch.get("config"), str):
        try:
            words = Launch.model_validate(launch, context={"folder": source.folder})
            changes["launch",] = words.plain()
            for sentence in words.doubts():
                say(f"note: {sentence}")
        except ValidationError as error:
            issues += [(("launch", *place), message) for place, message in flatten(error)]
    if issues:
        raise source.error(issues)
    return changes


# -- several files as one ----------------------------------------------------------------------------------------------


def joined(files: Sequence[Path], folder: Path) -> Path:
    """The rows of several files, in their order, as one file in `folder`. Raises ValueError, DataError where they are
    not of one kind, with the same columns."""
    kinds = {file.suffix.lower() for file in files}
    if len(kinds) > 1 and not kinds <= JSON:
        raise ValueError(f"stands for files of several kinds ({', '.join(sorted(kinds))}); {REMEDY}")
    for file in files:
        if file.stat().st_size == 0:
            raise ValueError(f"stands for files of which {file} is empty; give a file with data in it")
    kind = ".jsonl" if kinds <= JSON else kinds.pop()
    place = folder / f"{files[0].parent.name or 'data'}{kind}"
    if kind == ".parquet":
        _join_parquet(files, place)
        return place
    with open(place, "w", encoding="utf-8", newline="") as out:
        header: list[str] | None = None
        for file in files:
            try:
                with open(file, encoding="utf-8-sig", newline="") as lines:
                    if kind in SEPARATORS:
                        header = _copy_table(file, lines, out, SEPARATORS[kind], header)
                    elif file.suffix.lower() == ".json":
                        _copy_list(file, lines, out)
                    else:
                        _copy_lines(lines, out)
            except UnicodeDecodeError:
                raise ValueError(f"stands for files of which {file} is not UTF-8 text; save it as UTF-8") from None
            if kind == ".txt":  # a document ends with the file
                out.write("\n")
    return place


def _copy_lines(lines: IO[str], out: IO[str]) -> None:
    last = "\n"
    for last in lines:
        out.write(last)
    if not last.endswith(("\n", "\r")):
        out.write("\n")


def _copy_list(file: Path, lines: IO[str], out: IO[str]) -> None:
    """The objects of a `.json` file, one a line."""
    try:
        rows = json.load(lines)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"stands for files of which {file} is not valid JSON: {first_line(error)}") from None
    if not isinstance(rows, list):
        raise ValueError(f"stands for files of which {file} holds no list of objects, one for each row")
    out.writelines(f"{json.dumps(row)}\n" for row in rows)


def _copy_table(file: Path, lines: IO[str], out: IO[str], separator: str, header: list[str] | None) -> list[str]:
    """The rows of a table, with its header where it is the first; the header of all."""
    csv.field_size_limit(LONGEST_CELL)
    last = ["\n"]

    def passed(copying: list[bool]) -> Iterator[str]:
        for last[0] in lines:
            if copying[0]:
                out.write(last[0])
            yield last[0]

    copying = [header is None]
    rows = csv.reader(passed(copying), delimiter=separator, strict=True)
    try:
        own = next((row for row in rows if row), [])
        if header is not None and own != header:
            raise ValueError(
                f"stands for files with different columns: {file} has {', '.join(own)}, those before it "
                f"{', '.join(header)}; {REMEDY}"
            )
        copying[0] = True
        for _ in rows:  # read to its end, so that a quote that is never closed does not take in the next file
            pass
    except csv.Error as error:
        raise ValueError(f"stands for files of which {file} is not valid {file.suffix[1:].upper()}: {error}") from None
    if not last[0].endswith(("\n", "\r")):
        out.write("\n")
    return own


def _join_parquet(files: Sequence[Path], place: Path) -> None:
    from pyarrow import parquet

    opened = [opened_parquet(file) for file in files]
    schema = opened[0].schema_arrow
    for file, each in zip(files, opened, strict=True):
        if not each.schema_arrow.equals(schema):
            raise ValueError(f"stands for files with different columns, {files[0].name} and {file.name}; {REMEDY}")
    with parquet.ParquetWriter(place, schema) as writer:
        for each in opened:
            for group in range(each.num_row_groups):
                writer.write_table(each.read_row_group(group))
