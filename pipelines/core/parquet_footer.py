"""What a Parquet file says of its rows and column chunks, read from its footer and page headers by hand.

pyarrow reads footers, but of a chunk it also builds statistics of sizes, and where a broken or hostile file has them
wrong the error leaves C++ where nobody catches it and ends the process (`RowGroupMetaData.column`, pyarrow 26). The few
numbers that are needed before anything is decoded are therefore taken from the Thrift that the format is written in.
What only counts rows saves importing pyarrow as well.

Sources: parquet.thrift and the footer's layout of github.com/apache/parquet-format; the compact protocol as
thrift-compact-protocol.md of github.com/apache/thrift describes it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core.errors import DataError

TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
ENCODINGS = {
    0: "PLAIN",
    2: "PLAIN_DICTIONARY",
    3: "RLE",
    4: "BIT_PACKED",
    5: "DELTA_BINARY_PACKED",
    6: "DELTA_LENGTH_BYTE_ARRAY",
    7: "DELTA_BYTE_ARRAY",
    8: "RLE_DICTIONARY",
    9: "BYTE_STREAM_SPLIT",
}
MAGIC = b"PAR1"
LARGEST = 1 << 28
"""Bytes of a footer."""
DICTIONARY_PAGE = 2
"""In `PageType`."""
LENGTH = 4
"""Bytes before each text of a dictionary, which say how long it is."""
LARGEST_HEADER = 1024
"""Bytes of a dictionary page's header and more: it holds seven numbers."""
MOST_DEPTH = 32
"""Structures within each other; the format has eight."""


@dataclass(frozen=True)
class Chunk:
    """One column of one row group."""

    path: str
    """Names of the fields that lead to it, joined by dots."""
    physical_type: str
    encodings: frozenset[str]
    num_values: int
    total_uncompressed_size: int
    start: int
    """Where its first page begins in the file; 0 where the footer does not say it."""


@dataclass(frozen=True)
class RowGroup:
    """Some rows, and a chunk for each column."""

    num_rows: int
    chunks: tuple[Chunk, ...]


def row_groups(file: Path) -> list[RowGroup]:
    """The row groups of a file. Raises OSError, and DataError where the footer is not what the format says."""
    with _readable(file):
        return [_row_group(group) for group in _Compact(_footer(file)).structure().get(4, [])]


def num_rows(file: Path) -> int:
    """Rows of a file, its row groups not being read. Raises OSError, and DataError as `row_groups`."""
    with _readable(file):
        return int(_Compact(_footer(file)).structure(last=3)[3])


def mean_length(file: Path, column: str) -> float:
    """Bytes of a text of the column, or of an entry of its lists, on average.

    Writers of Parquet begin the texts of a chunk with a dictionary of those that differ, as far as it does not get too
    large: its header, which is read, says how many they are. Of other chunks it is the bytes of all texts, with what
    the format puts between them. Raises OSError, DataError as `row_groups`, and LookupError where there is no such
    column.
    """
    means: list[tuple[int, float]] = []
    for group in row_groups(file):
        chunk = next((each for each in group.chunks if f"{each.path}.".startswith(f"{column}.")), None)
        if chunk is None:
            raise LookupError(f"{file} has no column '{column}'")
        with _readable(file):
            count, size = _dictionary(file, chunk) or (chunk.num_values, chunk.total_uncompressed_size)
        if count > 0 and size >= 0:
            means.append((group.num_rows, size / count))
    return sum(rows * mean for rows, mean in means) / sum(rows for rows, _ in means)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error, OverflowError) as error:
        raise DataError(f"{file} is not a readable Parquet file: its footer is damaged ({error})") from None


def _footer(file: Path) -> bytes:
    with open(file, "rb") as content:
        end = content.seek(0, 2)
        content.seek(max(0, end - 8))
        length, magic = struct.unpack("<I4s", content.read(8))
        if magic != MAGIC or length > min(end - 8, LARGEST):
            raise ValueError("no footer stands at its end")
        content.seek(end - 8 - length)
        return content.read(length)


def _dictionary(file: Path, chunk: Chunk) -> tuple[int, int] | None:
    """(texts, bytes of them) in the dictionary that a chunk begins with; None where it begins with none."""
    with open(file, "rb") as content:
        content.seek(chunk.start)
        begins = content.read(LARGEST_HEADER)
    if _Compact(begins).structure(last=1).get(1) != DICTIONARY_PAGE:
        return None
    page = _Compact(begins).structure(last=7)
    count = int(page[7][1])
    return (count, int(page[2]) - LENGTH * count) if count > 0 else None


def _row_group(group: dict[int, Any]) -> RowGroup:
    return RowGroup(int(group[3]), tuple(_chunk(each[3]) for each in group.get(1, [])))


def _chunk(about: dict[int, Any]) -> Chunk:
    encodings = frozenset(ENCODINGS.get(each, "unknown") for each in about.get(2, []))
    path = ".".join(part.decode("utf-8", "replace") for part in about[3])
    pages = (int(about[place]) for place in (9, 11) if about.get(place))  # of data, of a dictionary before it
    return Chunk(path, TYPES[about[1]], encodings, int(about[5]), int(about[6]), min(pages, default=0))


class _Compact:
    """A reader of Thrift's compact protocol: structures as {field: value}, whatever their fields are."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def structure(self, depth: int = 0, last: int | None = None) -> dict[int, Any]:
        """The structure that begins here, of its fields those up to the number `last`."""
        if depth > MOST_DEPTH:
            raise ValueError("it is nested too deeply")
        fields: dict[int, Any] = {}
        field = 0
        while (header := self._byte()) & 0x0F:
            field = field + (header >> 4) if header >> 4 else self._whole()
            kind = header & 0x0F
            fields[field] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
            if last is not None and field >= last:
                break
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 1 | 2:  # in a list a truth value is a byte
                return self._byte() == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._whole()
            case 7:
                return struct.unpack("<d", self._bytes(8))[0]
            case 8:
                return self._bytes(self._size())
            case 9 | 10:
                return self._list(depth)
            case 11:
                return self._map(depth)
            case 12:
                return self.structure(depth + 1)
        raise ValueError(f"it has a value of the unknown type {kind}")

    def _list(self, depth: int) -> list[Any]:
        header = self._byte()
        count = self._size() if header >> 4 == 15 else header >> 4
        if count > len(self._content) - self._at:  # each takes a byte at least
            raise ValueError("a list is longer than the footer")
        return [self._value(header & 0x0F, depth + 1) for _ in range(count)]

    def _map(self, depth: int) -> list[tuple[Any, Any]]:
        count = self._size()
        if count > len(self._content) - self._at:
            raise ValueError("a map is longer than the footer")
        kinds = self._byte() if count else 0
        return [(self._value(kinds >> 4, depth + 1), self._value(kinds & 0x0F, depth + 1)) for _ in range(count)]

    def _whole(self) -> int:
        """A whole number, zigzag."""
        number = self._size()
        return (number >> 1) ^ -(number & 1)

    def _size(self) -> int:
        """A number of seven bits a byte, the lowest first."""
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 63:
                raise ValueError("a number is too long")

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        if self._at > len(self._content):
            raise ValueError("it ends too early")
        return self._content[self._at - count : self._at]
