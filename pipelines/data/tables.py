"""Data files as tables: Parquet, JSONL, JSON, CSV, TSV and plain text, the same on every machine.

Nothing is guessed. `.csv` is separated by commas and `.tsv` by tabs, both with a header and double quotes, and every
cell stays the text that it is; `.jsonl` holds one object a line, `.json` a list of objects; a `.txt` file holds
documents separated by blank lines, in the column `text`. Text is UTF-8. What cannot be read raises a DataError that
names the file and the line.

A small file can hold a lot: Parquet writes a text that repeats once. Rows are therefore decoded batch by batch, and
counted before they are: what would take more memory than `most_bytes` allows is refused with its size.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from pipelines.core.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

T = TypeVar("T")
CHUNK = 50_000
"""Rows that are held as Python objects at a time."""
MAPPED = 1 << 30
"""Bytes of Parquet beyond which rows are mapped from the data library's cache instead of held in memory."""
LEAST_DECODED = 1 << 28
"""Bytes that every file may become in memory."""
MOST_RATIO = 200
"""A file that becomes more than so many times its size, and more than LEAST_DECODED, is refused."""
BATCH_ROWS = 10_000
"""Rows of Parquet that are decoded at a time."""
FEW_ROWS = 256
"""Rows that are decoded at a time where the reader stops as soon as it has enough."""
FEW_VALUES = 256
"""Texts that are decoded at a time where their size is not known before."""
MOST_NAMES = 2_000
"""Different names in the objects of one JSON file: each is a column with a cell in every row."""
LONGEST_CELL = 1 << 26
"""Characters of one cell of CSV."""
MOST_JSON = 1 << 29
"""Bytes of a `.json` file, which is read whole; `.jsonl` has no such limit."""
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


def read(files: Sequence[Path]) -> Dataset:
    """The rows of all files, in their order. Raises DataError."""
    import pyarrow as pa
    from datasets import Dataset

    parquet = [file for file in files if file.suffix == ".parquet"]
    if len(parquet) == len(files) and sum(file.stat().st_size for file in files) > MAPPED:
        for file in files:
            _check_footer(file, _opened(file).metadata, most_bytes(file))
        return Dataset.from_parquet([str(file) for file in files])
    tables: list[pa.Table] = []
    for file in files:
        tables.append(read_file(file))
        _check_size(file, sum(table.nbytes for table in tables), max(LEAST_DECODED, half_of_memory()))
    try:
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        names = ", ".join(file.name for file in files[:5])
        raise DataError(f"the files {names} hold different columns and do not join: {_first_line(error)}") from None
    if table.num_rows == 0:
        place = files[0] if len(files) == 1 else files[0].parent
        raise DataError(f"{place} holds no rows; give a file with data in it")
    return Dataset(table)


def read_file(file: Path) -> pa.Table:
    """The rows of one file. Raises DataError."""
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"{file} has an unknown format; known file endings: {', '.join(READERS)}")
    try:
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty; give a file with data in it")
        return reader(file)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not UTF-8 text (byte {error.object[error.start]:#04x} {_near(file)}); save it as UTF-8"
        ) from None
    except FileNotFoundError:
        raise DataError(f"{file} is not there; was it moved since it was found?") from None
    except OSError as error:
        raise DataError(f"{file} could not be read: {_first_line(error)}") from None


def _near(file: Path) -> str:
    """Where the first byte that is not UTF-8 stands."""
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return f"in line {number}"
    return "at the end"


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].rstrip(".")


def half_of_memory() -> int:
    """Half of the bytes that this process may use: of the machine, of its control group, or of its own limit."""
    import resource

    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    found += [soft] if soft != resource.RLIM_INFINITY else []
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found.append(int(Path(place).read_text()))
    return min(found) // 2


def most_bytes(file: Path) -> int:
    """How many bytes the rows of a file may take in memory."""
    return max(LEAST_DECODED, min(MOST_RATIO * file.stat().st_size, half_of_memory()))


def _check_size(file: Path, size: int, most: int) -> None:
    if size > most:
        raise DataError(
            f"{file} has {file.stat().st_size:,} bytes, and its rows take {size:,} bytes in memory or more, "
            f"where {most:,} are allowed; "
            "give fewer rows, or shorter texts, in each file"
        )


def read_texts(files: Sequence[Path], column: str, texts: int) -> Dataset | None:
    """One column of Parquet files, up to the row that makes so many texts that are not empty; nothing else is decoded.

    None where that cannot be: other files, or one without the column. Raises DataError.
    """
    import pyarrow as pa
    from datasets import Dataset

    if any(file.suffix != ".parquet" or column not in _opened(file).schema_arrow.names for file in files):
        return None
    found, left = [], texts
    for file in files:
        for batch in parquet_batches(file, column=column, at_once=min(texts, FEW_ROWS)):
            found.append(batch)
            left -= sum(1 for cell in batch.column(0).to_pylist() if not isinstance(cell, str) or cell.strip())
            if left <= 0:
                return Dataset(pa.Table.from_batches(found))
    return Dataset(pa.Table.from_batches(found)) if found else None


def parquet_batches(
    file: Path, rows: int | None = None, column: str | None = None, at_once: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file in batches, only the first `rows` or only one column when given.

    Raises DataError before too much is decoded.

    Columns of texts that are stored as a dictionary stay one until it is known how large they are; of lists of such
    texts and of texts that are stored as differences, which cannot, few are decoded at a time.
    """
    import pyarrow as pa

    most = most_bytes(file)
    try:
        source = _opened(file)
        schema = source.schema_arrow if column is None else pa.schema([source.schema_arrow.field(column)])
        about = source.metadata
        _check_footer(file, about, most, rows if column is None else 1)
        folded = [
            at
            for at in range(about.num_columns)
            if about.schema.column(at).physical_type == "BYTE_ARRAY" and _folded(about, at)
        ]
        names = {at: about.schema.column(at).path for at in folded}
        kept = {
            at
            for at in folded
            if names[at] in schema.names and not any("DELTA" in each for each in _encodings(about, at))
        }
        source = _opened(file, [names[at] for at in kept if not pa.types.is_dictionary(schema.field(names[at]).type)])
        decoded, left = 0, about.num_rows if rows is None else rows
        size = min(at_once, left, *(_rows_of_few(about, at) for at in folded if at not in kept))
        for batch in source.iter_batches(batch_size=max(1, size), columns=None if column is None else [column]):
            if left <= 0:
                return
            part = batch.slice(0, left)
            left -= part.num_rows
            decoded += sum(_decoded_bytes(each) for each in part.columns)
            _check_size(file, decoded, most)
            plain = [
                each if each.type == field.type else each.cast(field.type)
                for each, field in zip(part.columns, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(plain, schema=schema)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} is not a readable Parquet file: {_first_line(error)}") from None


def _opened(file: Path, folded: Sequence[str] = ()) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file, read_dictionary=list(folded))
    except pa.ArrowException as error:
        raise DataError(f"{file} is not a readable Parquet file: {_first_line(error)}") from None


def _check_footer(file: Path, about: Any, most: int, rows: int | None = None) -> None:
    """Refuse what the file says of itself: its pages, and how many values it has; of a few rows only the pages
    count."""
    size = seen = 0
    for number in range(about.num_row_groups):
        group = about.row_group(number)
        for at in range(group.num_columns):
            column = group.column(at)
            size += max(0, column.total_uncompressed_size)
            size += max(0, column.num_values) * WIDTHS.get(column.physical_type, 8) if rows is None else 0
        seen += group.num_rows
        if rows is not None and seen >= rows:
            break
    _check_size(file, size, most)


def _folded(about: Any, at: int) -> bool:
    """Whether a column is stored as anything but each of its texts in full."""
    return not _encodings(about, at) <= {"PLAIN", "RLE", "BIT_PACKED"}


def _encodings(about: Any, at: int) -> set[str]:
    return {each for number in range(about.num_row_groups) for each in about.row_group(number).column(at).encodings}


def _rows_of_few(about: Any, at: int) -> int:
    """Rows of a column that hold FEW_VALUES values on average."""
    values = sum(about.row_group(number).column(at).num_values for number in range(about.num_row_groups))
    return FEW_VALUES * int(about.num_rows) // max(1, int(values))


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


def _parquet(file: Path) -> pa.Table:
    import pyarrow as pa

    batches = list(parquet_batches(file))
    return pa.Table.from_batches(batches) if batches else _opened(file).schema_arrow.empty_table()


def _separated(delimiter: str) -> Callable[[Path], pa.Table]:
    def reader(file: Path) -> pa.Table:
        import pyarrow as pa

        csv.field_size_limit(LONGEST_CELL)
        with open(file, encoding="utf-8-sig", newline="") as text:
            cells = _cells(file, text, delimiter)
            header = next(cells, None)
            if header is None:
                raise DataError(f"{file} is empty; its first line must name the columns")
            _check_header(file, header[1])
            schema = pa.schema([(name, pa.string()) for name in header[1]])
            batches = []
            for chunk in _chunks(_checked_rows(file, cells, header[1])):
                columns = zip(*chunk, strict=True)
                batches.append(pa.table([pa.array(column, pa.string()) for column in columns], schema=schema))
        return pa.concat_tables(batches) if batches else schema.empty_table()

    return reader


def _cells(file: Path, text: TextIO, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Every row that is not blank, with the number of its last line."""
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{file}, line {rows.line_num}, is not valid {file.suffix[1:].upper()}: {error}; a cell that holds a "
                'double quote, the separator or a line break must be quoted, and its quotes doubled ("")'
            ) from None
        if row:
            yield rows.line_num, row


def _check_header(file: Path, header: list[str]) -> None:
    if "" in (name.strip() for name in header):
        raise DataError(f"{file} has a column without a name; its first line must name every column, found: {header}")
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise DataError(f"{file} names the column '{repeated[0]}' more than once; give every column its own name")


def _checked_rows(file: Path, cells: Iterator[tuple[int, list[str]]], header: list[str]) -> Iterator[list[str]]:
    for line, row in cells:
        if len(row) != len(header):
            raise DataError(
                f"{file}, line {line}, has {len(row)} cells where the header has {len(header)} ({', '.join(header)}); "
                "quote the cells that hold the separator"
            )
        yield row


def _json_lines(file: Path) -> pa.Table:
    def rows() -> Iterator[dict[str, Any]]:
        with open(file, encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise DataError(f"{file}, line {number}, is not valid JSON: {_first_line(error)}") from None
                except RecursionError:
                    raise DataError(f"{file}, line {number}, is nested too deeply") from None
                yield _object(row, f"{file}, line {number},")

    return _objects(file, rows())


def _json(file: Path) -> pa.Table:
    if file.stat().st_size > MOST_JSON:
        raise DataError(
            f"{file} has {file.stat().st_size:,} bytes, more than {MOST_JSON:,}, and is read whole; write one "
            "object a line and name it .jsonl"
        )
    try:
        rows = json.loads(file.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise
    except RecursionError:
        raise DataError(f"{file} is nested too deeply") from None
    except ValueError as error:
        hint = "; one object a line is JSONL: name the file .jsonl" if "Extra data" in str(error) else ""
        raise DataError(f"{file} is not valid JSON: {_first_line(error)}{hint}") from None
    if not isinstance(rows, list):
        raise DataError(f"{file} holds a {type(rows).__name__}, must hold a list of objects, one for each row")
    return _objects(file, (_object(row, f"{file}, row {number},") for number, row in enumerate(rows, start=1)))


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f'{where} holds {json.dumps(row)[:40]}, must hold an object such as {{"text": "…"}}')
    return row


def _objects(file: Path, rows: Iterator[dict[str, Any]]) -> pa.Table:
    import pyarrow as pa

    tables = []
    start = 0
    known: set[str] = set()
    for chunk in _chunks(rows):
        names = list(dict.fromkeys(name for row in chunk for name in row))
        known.update(names)
        if len(known) > MOST_NAMES:
            raise DataError(
                f"{file} has {len(known):,} different names in its objects, at most {MOST_NAMES:,} are "
                "allowed; each is a column with a cell in every row"
            )
        columns = []
        for name in names:
            try:
                columns.append(pa.array([row.get(name) for row in chunk]))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise DataError(
                    f"{file} holds values of different types in '{name}' (rows {start + 1} to {start + len(chunk)}): "
                    f"{_first_line(error)}; write them all as texts, or all as numbers"
                ) from None
        tables.append(pa.table(columns, names=names))
        start += len(chunk)
    if not tables:
        raise DataError(f"{file} holds no rows; give a file with data in it")
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{file} holds values of different types in one column: {_first_line(error)}") from None


def _text(file: Path) -> pa.Table:
    import pyarrow as pa

    def documents() -> Iterator[str]:
        lines: list[str] = []
        with open(file, encoding="utf-8-sig") as text:
            for line in text:
                if line.strip():
                    lines.append(line.rstrip("\n"))
                elif lines:
                    yield "\n".join(lines)
                    lines = []
        if lines:
            yield "\n".join(lines)

    tables = [pa.table({"text": pa.array(chunk, pa.string())}) for chunk in _chunks(documents())]
    if not tables:
        raise DataError(f"{file} holds only blank lines; give a file with text in it")
    return pa.concat_tables(tables)


def _chunks(rows: Iterator[T]) -> Iterator[list[T]]:
    chunk: list[T] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


READERS: dict[str, Callable[[Path], pa.Table]] = {
    ".parquet": _parquet,
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _separated(","),
    ".tsv": _separated("\t"),
    ".txt": _text,
}
"""Reader of each file ending."""
