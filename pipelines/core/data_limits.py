"""What a data file may hold, and Parquet decoded within these limits.

A small file can hold a lot: Parquet writes a text that repeats once. Rows are therefore decoded batch by batch, and
counted before they are: what would take more memory than `most_bytes` allows is refused with its size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.core.errors import DataError
from pipelines.core.parquet_footer import Chunk, RowGroup, row_groups

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

LEAST_DECODED = 1 << 28
"""Bytes that every file may become in memory."""
MOST_RATIO = 200
"""A file that becomes more than so many times its size, and more than LEAST_DECODED, is refused."""
BATCH_ROWS = 10_000
"""Rows of Parquet that are decoded at a time."""
BUFFER = 1 << 20
"""Bytes of a Parquet file's column that are read at a time where it is read piece by piece."""
FEW_VALUES = 256
"""Texts that are decoded at a time where their size is not known before."""
MOST_NAMES = 2_000
"""Different names in the objects of one JSON file: each is a column with a cell in every row."""
LONGEST_CELL = 1 << 26
"""Characters of one cell of CSV."""
MOST_JSON = 1 << 29
"""Bytes of a `.json` file, which is read whole; `.jsonl` has no such limit."""
IN_FULL = {"PLAIN", "RLE", "BIT_PACKED"}
"""Encodings that write each text of a column in full."""
WIDTHS = {
    "BOOLEAN": 1,
    "INT32": 4,
    "INT64": 8,
    "INT96": 8,
    "FLOAT": 4,
    "DOUBLE": 8,
    "BYTE_ARRAY": 4,
    "FIXED_LEN_BYTE_ARRAY": 16,
}
"""Bytes that a value of Parquet takes in memory beside what the file itself says that it takes."""


def half_of_memory() -> int:
    """Half of the bytes that this process may use: of the machine, of its control group, or of its own limit."""
    import resource

    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits += [soft] if soft != resource.RLIM_INFINITY else []
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limits.append(int(Path(place).read_text()))
    return min(limits) // 2


def most_bytes(file: Path) -> int:
    """How many bytes the rows of a file may take in memory."""
    return max(LEAST_DECODED, min(MOST_RATIO * file.stat().st_size, half_of_memory()))


def check_size(file: Path, size: int, most: int) -> None:
    """Refuse rows that take more memory than is allowed. Raises DataError."""
    if size > most:
        raise DataError(
            f"{file} has {file.stat().st_size:,} bytes, and its rows take {size:,} bytes in memory or more, where "
            f"{most:,} are allowed; "
            "give fewer rows, or shorter texts, in each file"
        )


def parquet_batches(
    file: Path,
    rows: int | None = None,
    column: str | None = None,
    at_once: int = BATCH_ROWS,
    group: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file in batches, only the first `rows`, one column or one row group when given.

    Of one row group it is read piece by piece, and no batch is taken to be kept: each must fit by itself.

    Raises DataError before too much is decoded.

    Columns of texts that are stored as a dictionary stay one until it is known how large they are; of lists of such
    texts and of texts that are stored as differences, which cannot, few are decoded at a time.
    """
    import pyarrow as pa

    most = most_bytes(file)
    try:
        source = opened_parquet(file)
        schema = source.schema_arrow if column is None else pa.schema([source.schema_arrow.field(column)])
        about, groups_of_file = source.metadata, row_groups(file)
        check_footer(file, groups_of_file, most, rows if column is None else 1)
        chunks_of = [
            [group.chunks[at] for group in groups_of_file] for at in range(_columns(file, about, groups_of_file))
        ]
        folded = [
            at
            for at, chunks in enumerate(chunks_of)
            if about.schema.column(at).physical_type == "BYTE_ARRAY" and not _encodings(chunks) <= IN_FULL
        ]
        names = {at: about.schema.column(at).path for at in folded}
        dictionary_columns = {
            at
            for at in folded
            if names[at] in schema.names and not any("DELTA" in each for each in _encodings(chunks_of[at]))
        }
        source = opened_parquet(
            file,
            [names[at] for at in dictionary_columns if not pa.types.is_dictionary(schema.field(names[at]).type)],
            buffered=group is not None,
        )
        decoded, left = 0, about.num_rows if rows is None else rows
        size = min(
            at_once, left, *(_rows_of_few(about, chunks_of[at]) for at in folded if at not in dictionary_columns)
        )
        columns, groups = None if column is None else [column], None if group is None else [group]
        for batch in source.iter_batches(max(1, size), row_groups=groups, columns=columns):
            if left <= 0:
                return
            part = batch.slice(0, left)
            left -= part.num_rows
            decoded = sum(_decoded_bytes(each) for each in part.columns) + (decoded if group is None else 0)
            check_size(file, decoded, most)
            plain = [
                each if each.type == field.type else each.cast(field.type)
                for each, field in zip(part.columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(plain, schema=schema)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} is not a readable Parquet file: {first_line(error)}") from None


def opened_parquet(file: Path, folded: Sequence[str] = (), buffered: bool = False) -> parquet.ParquetFile:
    """The file behind its footer; `folded` names columns that stay dictionaries; `buffered` reads no column of a row
    group at once. Raises DataError."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file, read_dictionary=list(folded), buffer_size=BUFFER if buffered else 0)
    except pa.ArrowException as error:
        raise DataError(f"{file} is not a readable Parquet file: {first_line(error)}") from None


def check_footer(file: Path, groups: Sequence[RowGroup], most: int, rows: int | None = None) -> None:
    """Refuse what the file says of itself: its pages, and how many values it has; of a few rows only the pages
    count."""
    size = seen = 0
    for group in groups:
        for chunk in group.chunks:
            size += max(0, chunk.total_uncompressed_size)
            size += max(0, chunk.num_values) * WIDTHS.get(chunk.physical_type, 8) if rows is None else 0
        seen += group.num_rows
        if rows is not None and seen >= rows:
            break
    check_size(file, size, most)


def _columns(file: Path, about: parquet.FileMetaData, groups: Sequence[RowGroup]) -> int:
    """How many columns of values the file has. Raises DataError where a row group has others."""
    if any(len(group.chunks) != about.num_columns for group in groups):
        raise DataError(f"{file} is not a readable Parquet file: a row group has not the columns of its schema")
    return int(about.num_columns)


def _encodings(chunks: Sequence[Chunk]) -> set[str]:
    return {each for chunk in chunks for each in chunk.encodings}


def _rows_of_few(about: parquet.FileMetaData, chunks: Sequence[Chunk]) -> int:
    """Rows of a column that hold FEW_VALUES values on average."""
    return FEW_VALUES * int(about.num_rows) // max(1, sum(chunk.num_values for chunk in chunks))


def _decoded_bytes(array: pa.Array) -> int:
    """Bytes that an array takes once its dictionaries are taken apart."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        if not (pa.types.is_string(array.type.value_type) or pa.types.is_binary(array.type.value_type)):
            return int(array.nbytes)
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        return int(pc.sum(lengths.take(array.indices)).as_py() or 0) + 5 * len(array)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        return _decoded_bytes(array.flatten()) + 5 * len(array)
    if pa.types.is_map(array.type):
        return _decoded_bytes(array.keys) + _decoded_bytes(array.items) + 5 * len(array)
    if pa.types.is_struct(array.type):
        return sum(_decoded_bytes(array.field(at)) for at in range(array.type.num_fields)) + len(array)
    return int(array.nbytes)


def first_line(error: Exception) -> str:
    """The first line of a library's message, to stand in a sentence."""
    return str(error).split("\n")[0].rstrip(".")
