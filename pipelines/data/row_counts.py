"""How much data there is, as far as that can be told without reading it.

Parquet says it in its footer; a text file that is not too large is counted. Everything else is unknown: None.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.core.errors import DataError
from pipelines.core.parquet_footer import row_groups
from pipelines.data.sources import DataSource, find

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

    from pipelines.data.prompts import Prompts
    from pipelines.data.references import DatasetReference

LARGEST_COUNTED = 32 << 20
"""Bytes of a text file up to which its rows are counted: about a tenth of a second."""


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


def _file_rows(file: Path) -> int | None:
    kind = file.suffix.lower()
    try:
        if kind == ".parquet":
            return int(_footer(file).num_rows)
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


def _footer(file: Path) -> FileMetaData:
    """What a Parquet file says of itself. Raises ValueError or OSError."""
    from pyarrow.parquet import read_metadata  # slow to import: only where there is such a file

    return read_metadata(file)
