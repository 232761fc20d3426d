"""The texts of a data set, read one after another in constant memory, from any place that was written down.

`open_texts` gives what `DatasetReference.rows` gives, in the same order, without holding it: files are read line by
line or row group by row group (a `.json` list alone is read whole), a data set of the Hub is mapped from its cache or,
as a stream, read over the network. `position` is JSON: a reader that is opened there goes on with the next text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pipelines.core.data_files import paragraphs
from pipelines.core.data_limits import first_line, opened_parquet, parquet_batches
from pipelines.core.errors import DataError
from pipelines.data.hub import HubSource
from pipelines.data.sources import DataSource, FileSource, check_columns, check_split
from pipelines.data.tables import (
    READERS,
    check_header,
    checked_rows,
    json_list,
    json_objects,
    readable,
    separated_cells,
)

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

Position = Mapping[str, Any]
"""Where a reader stands, as JSON: `part` (which file), `at` (where in it), `row` (cells so far), `taken` (texts so
far)."""
AT_ONCE = 1_000
"""Rows of Parquet, or of a data set in Arrow's format, that are decoded at a time."""
OFFSET = (1 << 64) - 1
"""The bits of a text file's place that are its offset in bytes; those above are the decoder's."""
LOOKED_AT = 1_000
"""Objects of a JSONL file that are looked at for the names of its columns."""


class CellReader(Protocol):
    """The cells of one column of one file, or of a whole data set that does not lie in files."""

    def cells(self, at: Any = None) -> Iterator[object]:
        """The cells from the place `at` on, a value that `tell` gave; None is the beginning."""

    def tell(self) -> Any:
        """The place behind the cell that was read last, as JSON."""

    def read(self) -> tuple[int, int]:
        """(what was read since the beginning, all there is), in bytes of a file, else in rows; (0, 0) where that is
        not known."""

    def columns(self) -> Iterator[str]:
        """Names of the columns, as far as they can be told without reading everything; some more than once."""


@dataclass
class _TextFile:
    """JSONL, CSV, TSV or plain text. A place is [offset, lines before it]."""

    file: Path
    column: str

    def cells(self, at: Any = None) -> Iterator[object]:
        kind = self.file.suffix.lower()
        separator = {".csv": ",", ".tsv": "\t"}.get(kind)
        with readable(self.file), open(self.file, encoding="utf-8-sig", newline="" if separator else None) as text:
            self._text, self._line = text, 0
            header: list[str] = []
            if separator:
                _, header = next(separated_cells(self.file, self._lines(), separator), (0, []))
                if not header:
                    raise DataError(f"{self.file} is empty; its first line must name the columns")
                check_header(self.file, header)
            if at is not None:
                text.seek(at[0])
                self._line = at[1]
            if separator:
                rows = checked_rows(self.file, separated_cells(self.file, self._lines(), separator, self._line), header)
                place = header.index(self.column) if self.column in header else None
                yield from (None if place is None else row[place] for row in rows)
            elif kind == ".jsonl":
                yield from (row.get(self.column) for row in json_objects(self.file, self._lines(), self._line))
            else:
                yield from (each if self.column == "text" else None for each in paragraphs(self._lines()))

    def _lines(self) -> Iterator[str]:
        while line := self._text.readline():  # `next(text)` would leave `tell` without an answer
            self._line += 1
            yield line

    def tell(self) -> Any:
        return [self._text.tell(), self._line]

    def read(self) -> tuple[int, int]:
        return self._text.tell() & OFFSET, self.file.stat().st_size

    def columns(self) -> Iterator[str]:
        kind = self.file.suffix.lower()
        with readable(self.file), open(self.file, encoding="utf-8-sig", newline="") as text:
            if kind in (".csv", ".tsv"):
                yield from next(separated_cells(self.file, text, "," if kind == ".csv" else "\t"), (0, []))[1]
            elif kind == ".jsonl":
                for row in islice(json_objects(self.file, text), LOOKED_AT):
                    yield from row
            else:
                yield "text"


@dataclass
class _ParquetFile:
    """A place is [row group, rows of it]."""

    file: Path
    column: str

    def cells(self, at: Any = None) -> Iterator[object]:
        self._place = list(at or [0, 0])
        with readable(self.file):
            self._about = about = opened_parquet(self.file).metadata
            if self.column not in set(self.columns()):
                yield from (None for _ in range(about.num_rows))
                return
            for group in range(self._place[0], about.num_row_groups):
                skipped = self._place[1] if group == self._place[0] else 0
                self._place = [group, 0]
                for batch in parquet_batches(self.file, column=self.column, at_once=AT_ONCE, group=group):
                    if (start := max(0, skipped - self._place[1])) >= batch.num_rows:
                        self._place[1] += batch.num_rows
                        continue
                    self._place[1] += start
                    for cell in batch.column(0).slice(start).to_pylist():
                        self._place[1] += 1
                        yield cell

    def tell(self) -> Any:
        return list(self._place)

    def read(self) -> tuple[int, int]:
        rows = sum(self._about.row_group(group).num_rows for group in range(self._place[0])) + self._place[1]
        size = self.file.stat().st_size
        return size * rows // max(1, self._about.num_rows), size

    def columns(self) -> Iterator[str]:
        yield from opened_parquet(self.file).schema_arrow.names


class _Rows:
    """Rows at hand: a list of objects, or a data set in Arrow's format. A place is [rows]."""

    def __init__(self, load: Callable[[], list[dict[str, Any]] | Dataset], column: str) -> None:
        self._load, self.column, self._place = load, column, 0

    def cells(self, at: Any = None) -> Iterator[object]:
        self._rows, self._place = self._load(), at[0] if at else 0
        while self._place < len(self._rows):
            for cell in self._some(self._place):
                self._place += 1
                yield cell

    def _some(self, start: int) -> list[object]:
        if isinstance(self._rows, list):
            return [row.get(self.column) for row in self._rows[start : start + AT_ONCE]]
        columns: dict[str, list[object]] = self._rows[start : start + AT_ONCE]
        return columns.get(self.column, [None] * AT_ONCE)

    def tell(self) -> Any:
        return [self._place]

    def read(self) -> tuple[int, int]:
        return self._place, len(self._rows)

    def columns(self) -> Iterator[str]:
        rows = self._load()
        yield from chain.from_iterable(rows) if isinstance(rows, list) else rows.column_names


class _HubStream:
    """A data set of the Hub, read over the network. A place is what `datasets` says of its own."""

    def __init__(self, rows: IterableDataset, column: str, described: str) -> None:
        self._rows, self.column, self._described = rows, column, described

    def cells(self, at: Any = None) -> Iterator[object]:
        if at is not None:
            self._rows.load_state_dict(at)
        return (row.get(self.column) for row in self._asked())

    def _asked(self) -> Iterator[dict[str, Any]]:
        """The rows; what the network and the library say becomes one sentence."""
        try:
            yield from self._rows
        except Exception as error:
            raise DataError(
                f"{self._described} could not be read: {first_line(error) or type(error).__name__}; `finery resume` "
                "goes on from the last checkpoint"
            ) from error

    def tell(self) -> Any:
        return self._rows.state_dict()

    def read(self) -> tuple[int, int]:
        return 0, 0

    def columns(self) -> Iterator[str]:
        yield from self._rows.column_names or next(self._asked(), {})


class Texts:
    """The texts that hold more than white space, in their order: an iterator that knows where it stands."""

    def __init__(
        self,
        parts: Sequence[CellReader],
        column: str,
        described: str,
        most: int | None = None,
        start: Position | None = None,
    ) -> None:
        self._parts, self._column, self._described, self._most = parts, column, described, most
        self._part, self._at, self._row, self.taken = 0, None, 0, 0
        if start is not None:
            self._part, self._at, self._row, self.taken = (start[key] for key in ("part", "at", "row", "taken"))
        self._reading = False
        self._sizes: list[int] = []
        self._texts = self._read()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._texts)

    def position(self) -> Position:
        """Where the text behind the last one is found."""
        at = self._parts[self._part].tell() if self._reading else self._at
        return {"part": self._part, "at": at, "row": self._row, "taken": self.taken}

    def read(self) -> tuple[int, int]:
        """(what was read, all there is), in bytes of the files, else in rows; (0, 0) where that is not known."""
        if self._most is not None:
            return self.taken, self._most
        files = [part.file for part in self._parts if isinstance(part, _TextFile | _ParquetFile)]
        if len(files) == len(self._parts):
            self._sizes = self._sizes or [file.stat().st_size for file in files]
            inside = self._parts[self._part].read()[0] if self._reading else 0
            return sum(self._sizes[: self._part]) + inside, sum(self._sizes)
        return self._parts[self._part].read() if self._reading and len(self._parts) == 1 else (0, 0)

    def _read(self) -> Iterator[str]:
        while self._part < len(self._parts) and self.taken != self._most:
            for cell in self._parts[self._part].cells(self._at):
                self._reading = True
                self._row += 1
                if cell is None:
                    continue
                if not isinstance(cell, str):
                    raise DataError(
                        f"{self._described}, row {self._row}, holds {str(cell)[:40]!r} ({type(cell).__name__}) in the "
                        f"column '{self._column}', must be a text; name the column of the text with 'text'"
                    )
                if cell.strip():
                    self.taken += 1
                    yield cell
                if self.taken == self._most:
                    return
            self._part, self._at, self._reading = self._part + 1, None, False
        if not self.taken:
            raise DataError(
                f"{self._described} has no text in the column '{self._column}': all {self._row} cells are empty"
            )


class JoinedTexts:
    """The texts of several data sets, one data set after another."""

    def __init__(self, openers: Sequence[Callable[[Position | None], Texts]], start: Position | None = None) -> None:
        self._openers = openers
        self._set = 0 if start is None else start["set"]
        self._texts = openers[self._set](None if start is None else start["texts"])

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while (text := next(self._texts, None)) is None:
            if self._set + 1 == len(self._openers):
                raise StopIteration
            self._set += 1
            self._texts = self._openers[self._set](None)
        return text

    def position(self) -> Position:
        """Where the text behind the last one is found."""
        return {"set": self._set, "texts": self._texts.position()}

    def read(self) -> tuple[int, int]:
        """(what was read, all there is) of the data set that is being read, counted with the others as equal parts."""
        done, everything = self._texts.read()
        return self._set * everything + done, everything * len(self._openers)


def open_texts(
    source: DataSource,
    split: str,
    column: str,
    most: int | None = None,
    start: Position | None = None,
    streaming: bool = False,
) -> Texts:
    """The texts of a split, the first `most` of them, from `start` on. Raises DataError, also while they are read.

    `streaming` reads a data set of the Hub over the network instead of taking all of it into the cache first.
    """
    described = source.describe()
    check_split(split, source.splits(), described)
    parts = _parts(source, split, column, streaming)
    if start is None:
        _check_column(parts, column, f"{described}, split '{split}',")
    return Texts(parts, column, described, most, start)


def _check_column(parts: Sequence[CellReader], column: str, described: str) -> None:
    """Refuse a column that no file has, before everything is read for it. Raises DataError."""
    names: dict[str, None] = {}
    for part in parts:
        for name in part.columns():
            if name == column:
                return
            names[name] = None
    if not names:
        raise DataError(f"{described} holds no rows; give a file with data in it")
    check_columns((column,), list(names), described)


def _parts(source: DataSource, split: str, column: str, streaming: bool) -> list[CellReader]:
    if isinstance(source, FileSource):
        return [_part(file, column) for file in source.files[split]]
    if streaming and isinstance(source, HubSource):
        return [_HubStream(source.stream(split), column, source.describe())]
    return [_Rows(lambda: source.load(split), column)]


def _part(file: Path, column: str) -> CellReader:
    kind = file.suffix.lower()
    if kind == ".parquet":
        return _ParquetFile(file, column)
    if kind == ".json":
        return _Rows(lambda: json_list(file), column)
    if kind not in READERS:
        raise DataError(f"{file} has an unknown format; known file endings: {', '.join(READERS)}")
    return _TextFile(file, column)
