"""How much data there is, as far as that can be told without reading it.

Parquet says it in its footer; a text file that is not too large is counted, and its first rows are measured. Everything
else is unknown: None.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pipelines.core.errors import DataError
from pipelines.core.parquet_footer import mean_length, num_rows, row_groups
from pipelines.data.sources import DataSource, find

if TYPE_CHECKING:
    from pipelines.data.prompts import Prompts
    from pipelines.data.references import DatasetReference

LARGEST_COUNTED = 32 << 20
"""Bytes of a text file up to which its rows are counted: about a tenth of a second."""
MEASURED_ROWS = 200
"""Of a text file, the first ones."""
UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ZeroDivisionError,
    RecursionError,
    csv.Error,
    DataError,
)
"""What is raised over a file that is not what it should be, of which the stage itself says what is wrong."""


def source_rows(source: DataSource, split: str) -> int | None:
    """Rows of a split of a data source."""
    files = getattr(source, "files", {}).get(split)
    if not files:
        return None
    counts = [_file_rows(file) for file in files]
    return None if None in counts else sum(count for count in counts if count is not None)


def prompt_rows(prompts: Prompts) -> int | None:
    """Rows that prompts are read from."""
    try:
        total = source_rows(find(prompts.path, prompts.name), prompts.split)
    except DataError:
        return None
    counts = [rows for rows in (total, prompts.max_samples) if rows is not None]
    return min(counts, default=None)


def text_bytes(reference: DatasetReference, limit: int | None) -> int | None:
    """About the bytes of text in the first `limit` rows of a data set."""
    try:
        source = reference.source()
        files: list[Path] | None = getattr(source, "files", {}).get(reference.split)
    except DataError:
        return None
    if not files:
        return None
    sizes = [_text_bytes(file, reference.text) for file in files]
    if None in sizes:
        return None
    total = sum(size for size in sizes if size is not None)
    if limit is None:
        return total
    rows = source_rows(source, reference.split)
    return None if rows is None else total if rows <= limit else total * limit // rows


def mean_text_bytes(source: DataSource, split: str, columns: Sequence[str]) -> float | None:
    """About the bytes that the texts of these columns have in a row of a split, by its largest file.

    Of a column of lists those of one entry count.
    """
    files: list[Path] = getattr(source, "files", {}).get(split) or []
    try:
        return _mean_bytes(max(files, key=lambda file: file.stat().st_size), columns)
    except UNREADABLE:
        return None


def list_length(source: DataSource, split: str, column: str) -> int | None:
    """How many entries the lists of a column have, where all have as many."""
    files: list[Path] = getattr(source, "files", {}).get(split) or []
    try:
        return _list_length(files[0], column)
    except UNREADABLE:
        return None


def _list_length(file: Path, column: str) -> int | None:
    if file.suffix.lower() == ".parquet":
        groups = row_groups(file)
        inner = (chunk.num_values for each in groups for chunk in each.chunks if chunk.path.startswith(f"{column}."))
        count, rest = divmod(sum(inner), sum(group.num_rows for group in groups))
        return count if count and not rest else None
    lists = [_cell(row, column) for row in _first_rows(file)]
    lengths = {len(each) if isinstance(each, list) else 0 for each in lists}
    return lengths.pop() or None if len(lengths) == 1 else None


def _file_rows(file: Path) -> int | None:
    kind = file.suffix.lower()
    try:
        if kind == ".parquet":
            return num_rows(file)
        if file.stat().st_size > LARGEST_COUNTED:
            return None
        with open(file, encoding="utf-8-sig", newline="") as text:
            if kind in (".csv", ".tsv"):
                return max(0, sum(1 for row in _table(text, kind) if row) - 1)
            if kind == ".jsonl":
                return sum(1 for line in text if line.strip())
    except (OSError, ValueError, csv.Error, DataError):  # the stage itself will say what is wrong with the file
        return None
    return None


def _text_bytes(file: Path, column: str) -> int | None:
    """Bytes of a Parquet file's column before compression; of any other file its size."""
    if file.suffix.lower() != ".parquet":
        return file.stat().st_size
    try:
        groups = row_groups(file)
    except (OSError, DataError):
        return None
    sizes = [chunk.total_uncompressed_size for group in groups for chunk in group.chunks if chunk.path == column]
    return sum(sizes) if sizes else None


def _table(text: TextIO, kind: str) -> Iterator[list[str]]:
    csv.field_size_limit(sys.maxsize)
    return csv.reader(text, delimiter="," if kind == ".csv" else "\t")


def _mean_bytes(file: Path, columns: Sequence[str]) -> float:
    """Bytes that the texts of these columns have in a row of the file, on average."""
    if file.suffix.lower() == ".parquet":
        return sum(mean_length(file, column) for column in columns)
    first = _first_rows(file)
    return sum(_mean(_cell(row, column)) for row in first for column in columns) / len(first)


def _mean(cell: Any) -> float:
    """Bytes of a text, or of a text in a list."""
    return sum(map(_mean, cell)) / len(cell) if isinstance(cell, list) else len(cell.encode())


def _first_rows(file: Path) -> list[Mapping[str, Any]]:
    """Some rows of a text file that is not too large. Raises an error of UNREADABLE for any other."""
    kind = file.suffix.lower()
    if kind not in (".csv", ".tsv", ".jsonl") or file.stat().st_size > LARGEST_COUNTED:
        raise ValueError(f"{file} is not measured")
    with open(file, encoding="utf-8-sig", newline="") as text:
        return [*islice(_rows(text, kind), MEASURED_ROWS)]


def _rows(text: TextIO, kind: str) -> Iterator[Mapping[str, Any]]:
    if kind == ".jsonl":
        return (json.loads(line) for line in text if line.strip())
    rows = (row for row in _table(text, kind) if row)
    names = next(rows, [])
    return (dict(zip(names, row, strict=True)) for row in rows)


def _cell(row: Mapping[str, Any], column: str) -> Any:
    """What stands in a column, or where a path such as `translation.en` leads. Raises LookupError or TypeError."""
    cell: Any = row
    for key in [column] if column in row else column.split("."):
        cell = cell[key]
    return cell
