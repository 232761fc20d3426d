"""How much data a stage will read, as far as that can be told without reading the data.

Reads the numbers in a Parquet file's footer with the standard library: how many rows, how large each column.

Importing a Parquet library takes longer than all else that `finery plan` does. The footer is a `FileMetaData` struct
(github.com/apache/parquet-format, src/main/thrift/parquet.thrift) in Thrift's compact protocol
(github.com/apache/thrift, doc/specs/thrift-compact-protocol.md).

How much data a stage will read, as far as that can be told without reading the data.

Parquet says it in its footer; a text file that is not too large is counted. Everything else is unknown: None.
"""

from __future__ import annotations

import csv
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import DataError

if TYPE_CHECKING:
    from pipelines.data.prompts import Prompts
    from pipelines.data.references import DatasetReference
    from pipelines.data.sources import Source
    from pipelines.tasks.base import Task
    from pipelines.tasks.preference.task import PreferenceReference


MAGIC = b"PAR1"
NUM_ROWS, ROW_GROUPS = 3, 4  # of FileMetaData
COLUMNS = 1  # of RowGroup
META_DATA = 3  # of ColumnChunk
PATH_IN_SCHEMA, TOTAL_UNCOMPRESSED_SIZE = 3, 6  # of ColumnMetaData


@dataclass(frozen=True)
class Footer:
    """What a Parquet file says of itself."""

    rows: int
    column_bytes: dict[str, int]
    """Bytes of each column before compression, by its dotted path."""


def read_footer(file: Path) -> Footer:
    """The footer's numbers. Raises ValueError when the file is not Parquet, OSError when it cannot be read."""
    with open(file, "rb") as content:
        size = content.seek(0, 2)
        if size < 12:
            raise ValueError(f"{file} is not a Parquet file")
        content.seek(size - 8)
        length, magic = struct.unpack("<I4s", content.read(8))
        if magic != MAGIC or length > size - 12:
            raise ValueError(f"{file} is not a Parquet file")
        content.seek(size - 8 - length)
        encoded = content.read(length)
    try:
        about = _Compact(encoded).struct()
        column_bytes: dict[str, int] = {}
        for group in about[ROW_GROUPS]:
            for column in group[COLUMNS]:
                described = column[META_DATA]
                name = ".".join(part.decode() for part in described[PATH_IN_SCHEMA])
                column_bytes[name] = column_bytes.get(name, 0) + described[TOTAL_UNCOMPRESSED_SIZE]
        return Footer(about[NUM_ROWS], column_bytes)
    except (IndexError, KeyError, TypeError, struct.error) as error:
        raise ValueError(f"{file} has a footer that cannot be read: {error!r}") from None


class _Compact:
    """Thrift's compact protocol: a struct becomes a mapping from field id to value."""

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded
        self.at = 0

    def byte(self) -> int:
        self.at += 1
        return self.encoded[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            part = self.byte()
            value |= (part & 0x7F) << shift
            if part < 0x80:
                return value
            shift += 7

    def integer(self) -> int:
        coded = self.varint()
        return (coded >> 1) ^ -(coded & 1)  # zigzag

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        field = 0
        while (head := self.byte()) != 0:
            field = field + (head >> 4) if head >> 4 else self.integer()
            kind = head & 0x0F
            fields[field] = kind == 1 if kind in (1, 2) else self.value(kind)  # a field's boolean is its type
        return fields

    def value(self, kind: int) -> Any:
        if kind in (1, 2, 3):
            return self.byte()
        if kind in (4, 5, 6):
            return self.integer()
        if kind == 7:
            self.at += 8
            return struct.unpack("<d", self.encoded[self.at - 8 : self.at])[0]
        if kind == 8:
            length = self.varint()
            self.at += length
            if self.at > len(self.encoded):
                raise IndexError("a text runs over the end")
            return self.encoded[self.at - length : self.at]
        if kind in (9, 10):
            head = self.byte()
            count = head >> 4 if head >> 4 < 15 else self.varint()
            return [self.value(head & 0x0F) for _ in range(count)]
        if kind == 12:
            return self.struct()
        raise TypeError(f"type {kind} does not occur in a footer")


LARGEST_COUNTED = 32 << 20
"""Bytes of a text file up to which its rows are counted: about a tenth of a second."""


def task_rows(task: Task, split: str) -> int | None:
    """Rows of a split of a task, what is held out left out."""
    from pipelines.tasks.base import HELD_OUT, held_out_rows

    stored = split if split in task.places else "train"
    try:
        source, inner = task.places[stored].open(stored)
        total = _rows(source, inner)
    except (DataError, KeyError):
        return None
    if total is None or HELD_OUT in task.places or HELD_OUT not in task.evaluation_splits.values():
        return total
    share = getattr(task, "share", None)
    held_out = len(held_out_rows(total)) if share is None else round(total * share)
    return held_out if split == HELD_OUT else total - held_out


def whole_rows(task: Task) -> int | None:
    """Rows that a task's training rows are part of, what is held out among them."""
    try:
        source, inner = task.places["train"].open("train")
    except (DataError, KeyError):
        return None
    return _rows(source, inner)


def reference_rows(reference: PreferenceReference) -> int | None:
    """Rows of a reference to preferences; None for what a stage has yet to write."""
    from pipelines.data.sources import find

    if reference.path is None:
        return None
    try:
        return _rows(find(reference.path, reference.name), reference.split)
    except DataError:
        return None


def prompt_rows(prompts: Prompts) -> int | None:
    """Rows that prompts are read from."""
    from pipelines.data.sources import find

    try:
        total = _rows(find(prompts.path, prompts.name), prompts.split)
    except DataError:
        return None
    known = [rows for rows in (total, prompts.max_samples) if rows is not None]
    return min(known, default=None)


def text_bytes(reference: DatasetReference, limit: int | None) -> int | None:
    """About the bytes of text in the first `limit` rows of a data set."""
    try:
        source = reference.source()
        files = getattr(source, "files", {}).get(reference.split)
    except DataError:
        return None
    if not files:
        return None
    total = 0
    for file in files:
        if file.suffix.lower() == ".parquet":
            column = _parquet_column(file, reference.text)
            if column is None:
                return None
            total += column
        else:
            total += file.stat().st_size
    if limit is None:
        return total
    rows = _rows(source, reference.split)
    return None if rows is None else total if rows <= limit else total * limit // rows


def _rows(source: Source, split: str) -> int | None:
    files = getattr(source, "files", {}).get(split)
    if not files:
        return None
    counts = [_file_rows(file) for file in files]
    return None if None in counts else sum(count for count in counts if count is not None)


def _file_rows(file: Path) -> int | None:
    kind = file.suffix.lower()
    try:
        if kind == ".parquet":
            return read_footer(file).rows
        if file.stat().st_size > LARGEST_COUNTED:
            return None
        with open(file, encoding="utf-8-sig", newline="") as text:
            if kind in (".csv", ".tsv"):
                csv.field_size_limit(sys.maxsize)
                rows = csv.reader(text, delimiter="," if kind == ".csv" else "\t")
                return max(0, sum(1 for row in rows if row) - 1)
            if kind == ".jsonl":
                return sum(1 for line in text if line.strip())
    except (OSError, ValueError, csv.Error):  # the stage itself will say what is wrong with the file
        return None
    return None


def _parquet_column(file: Path, column: str) -> int | None:
    """Bytes of a column before compression."""
    try:
        return read_footer(file).column_bytes.get(column)
    except (OSError, ValueError):
        return None
