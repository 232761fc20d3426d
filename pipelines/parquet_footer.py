"""Reads the numbers in a Parquet file's footer with the standard library: how many rows, how large each column.

Importing a Parquet library takes longer than all else that `finery plan` does. The footer is a `FileMetaData` struct
(github.com/apache/parquet-format, src/main/thrift/parquet.thrift) in Thrift's compact protocol
(github.com/apache/thrift, doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
