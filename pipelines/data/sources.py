"""Data sources: where a data set is looked for, and data sets that lie in files.

Each place of the SOURCES table is asked in turn, and the first that knows the name answers. A source module has
three functions: `find(path, name)`, which returns a DataSource or None, `looked(path)`, which says in words where it
looked, and `example(folder)`, which names a small data set that is found there, for what every source must pass.
Nothing is read before `load`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pipelines.core.errors import DataError
from pipelines.core.files import home, read_json, sha256_of, write_json
from pipelines.core.registry import SOURCES, nearest

if TYPE_CHECKING:
    from datasets import Dataset


class DataSource(Protocol):
    """One data set in one configuration."""

    def splits(self) -> list[str]:
        """Names of the splits that exist. Raises DataError."""

    def load(self, split: str) -> Dataset:
        """The rows of a split. Raises DataError."""

    def content_hash(self, split: str) -> str:
        """A hash that changes when the split's data does. Raises DataError."""

    def describe(self) -> str:
        """What this is and where it lies, for messages."""


def find(path: str, name: str | None = None) -> DataSource:
    """The data set called `path`, in the configuration `name`. Raises DataError."""
    for kind in SOURCES:
        source: DataSource | None = SOURCES.load(kind)(path, name)
        if source is not None:
            return source
    raise DataError(f"data set '{path}' was not found; looked in {places(path)}")


def places(path: str) -> str:
    """Every place where `path` is looked for, in words."""
    looked = [place for kind in SOURCES for place in import_module(SOURCES.module(kind)).looked(path)]
    return "; ".join(looked)


def check_split(split: str, splits: list[str], described: str) -> None:
    """Raise DataError when `split` is not one of `splits`."""
    if split not in splits:
        hint = nearest(split, splits)
        raise DataError(f"{described} has no split '{split}'.{hint} Splits found: {', '.join(splits)}")


def check_columns(columns: tuple[str, ...], available: list[str], described: str) -> None:
    """Raise DataError when one of `columns` is not among those that are `available`."""
    for column in columns:
        if column not in available:
            raise DataError(
                f"{described} has no column '{column}'.{nearest(column, available)} Columns found: "
                f"{', '.join(available)}"
            )


@dataclass(frozen=True)
class FileSource:
    """Splits made of files."""

    described: str
    files: Mapping[str, tuple[Path, ...]]
    """The files of each split, in the order in which they are read."""

    def splits(self) -> list[str]:
        """Names of the splits."""
        return list(self.files)

    def load(self, split: str) -> Dataset:
        """The rows of a split. Raises DataError."""
        from pipelines.data.tables import read

        check_split(split, self.splits(), self.described)
        return read(self.files[split])

    def texts(self, split: str, column: str, most: int) -> Dataset | None:
        """One column of a split, no further than `most` texts need it; None where all has to be read. Raises
        DataError."""
        from pipelines.data.tables import read_texts

        check_split(split, self.splits(), self.described)
        return read_texts(self.files[split], column, most)

    def content_hash(self, split: str) -> str:
        """SHA-256 over the files' endings and bytes; where they lie does not matter. Raises DataError."""
        check_split(split, self.splits(), self.described)
        parts = "\n".join(f"{file.suffix.lower()} {file_hash(file)}" for file in self.files[split])
        return hashlib.sha256(parts.encode()).hexdigest()

    def describe(self) -> str:
        """What this is and where it lies."""
        return self.described


REMEMBERED = 64 << 20
"""Bytes from which on a file's hash is kept in FINERY_HOME, so that no other process reads the file for it."""
SETTLED = 2 * 10**9
"""Nanoseconds since a file's last change before its hash is kept: a later change may bear the same time."""


def file_hash(file: Path) -> str:
    """SHA-256 of a file's bytes, computed once while its size and time of change stay the same: for a large file once
    for all runs with this FINERY_HOME, else once for this process. Raises DataError."""
    try:
        about = file.stat()
        if about.st_size < REMEMBERED:
            return sha256_of(file)
        name = hashlib.sha256(f"{file.resolve()}\n{about.st_dev} {about.st_ino}".encode()).hexdigest()[:32]
        place = home() / "data" / "hashes" / f"{name}.json"
        stamp = [about.st_size, about.st_mtime_ns]
        kept = read_json(place)
        if kept.get("stamp") == stamp:
            return str(kept["sha256"])
        made = sha256_of(file)
        if time.time_ns() - about.st_mtime_ns > SETTLED:
            with suppress(OSError):  # a folder that may not be written to costs time and nothing else
                place.parent.mkdir(parents=True, exist_ok=True)
                write_json(place, {"stamp": stamp, "sha256": made})
        return made
    except OSError as error:
        raise DataError(f"{file} could not be read: {error.strerror}") from None
