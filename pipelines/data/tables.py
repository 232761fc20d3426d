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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipelines.core.data_files import paragraphs, question_rows
from pipelines.core.data_limits import (
    LEAST_DECODED,
    LONGEST_CELL,
    MOST_JSON,
    MOST_NAMES,
    check_footer,
    check_size,
    first_line,
    half_of_memory,
    most_bytes,
    opened_parquet,
    parquet_batches,
)
from pipelines.core.errors import DataError
from pipelines.core.parquet_footer import row_groups

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset, DatasetInfo


T = TypeVar("T")
CHUNK = 50_000
"""Rows that are held as Python objects at a time."""
MAPPED = 1 << 30
"""Bytes of Parquet beyond which rows are mapped from the data library's cache instead of held in memory."""
FEW_ROWS = 256
"""Rows that are decoded at a time where the reader stops as soon as it has enough."""


def read(files: Sequence[Path]) -> Dataset:
    """The rows of all files, in their order. Raises DataError."""
    import pyarrow as pa
    from datasets import Dataset

    parquet = [file for file in files if file.suffix == ".parquet"]
    if len(parquet) == len(files) and sum(file.stat().st_size for file in files) > MAPPED:
        for file in files:
            opened_parquet(file)
            check_footer(file, row_groups(file), most_bytes(file))
        return Dataset.from_parquet([str(file) for file in files])
    tables: list[pa.Table] = []
    for file in files:
        tables.append(read_file(file))
        check_size(file, sum(table.nbytes for table in tables), max(LEAST_DECODED, half_of_memory()))
    try:
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        names = ", ".join(file.name for file in files[:5])
        raise DataError(f"the files {names} hold different columns and do not join: {first_line(error)}") from None
    if table.num_rows == 0:
        place = files[0] if len(files) == 1 else files[0].parent
        raise DataError(f"{place} holds no rows; give a file with data in it")
    return in_memory(table)


def in_memory(table: pa.Table, info: DatasetInfo | None = None) -> Dataset:
    """The table as a Dataset, named by chance: the data library would read all of it to name it by its content, under
    which it keeps what it makes of data, and nothing is made of it here."""
    from datasets import Dataset
    from datasets.fingerprint import generate_random_fingerprint

    return Dataset(table, info=info, fingerprint=generate_random_fingerprint())


def read_file(file: Path) -> pa.Table:
    """The rows of one file. Raises DataError."""
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"{file} has an unknown format; known file endings: {', '.join(READERS)}")
    with readable(file):
        return reader(file)


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Reading a file of data; what goes wrong becomes a DataError."""
    try:
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty; give a file with data in it")
        yield
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not UTF-8 text (byte {error.object[error.start]:#04x} {_near(file)}); save it as UTF-8"
        ) from None
    except FileNotFoundError:
        raise DataError(f"{file} is not there; was it moved since it was found?") from None
    except OSError as error:
        raise DataError(f"{file} could not be read: {first_line(error)}") from None


def _near(file: Path) -> str:
    """Where the first byte that is not UTF-8 stands."""
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return f"in line {number}"
    return "at the end"


def read_texts(files: Sequence[Path], column: str, texts: int) -> Dataset | None:
    """One column of Parquet files, up to the row that makes so many texts that are not empty; nothing else is decoded.

    None where that cannot be: other files, or one without the column. Raises DataError.
    """
    import pyarrow as pa

    if any(file.suffix != ".parquet" or column not in opened_parquet(file).schema_arrow.names for file in files):
        return None
    batches, left = [], texts
    for file in files:
        for batch in parquet_batches(file, column=column, at_once=min(texts, FEW_ROWS)):
            batches.append(batch)
            left -= sum(1 for cell in batch.column(0).to_pylist() if not isinstance(cell, str) or cell.strip())
            if left <= 0:
                return in_memory(pa.Table.from_batches(batches))
    return in_memory(pa.Table.from_batches(batches)) if batches else None


def _parquet(file: Path) -> pa.Table:
    import pyarrow as pa

    batches = list(parquet_batches(file))
    return pa.Table.from_batches(batches) if batches else opened_parquet(file).schema_arrow.empty_table()


def _separated(delimiter: str) -> Callable[[Path], pa.Table]:
    def reader(file: Path) -> pa.Table:
        import pyarrow as pa

        with open(file, encoding="utf-8-sig", newline="") as text:
            cells = separated_cells(file, text, delimiter)
            header = next(cells, None)
            if header is None:
                raise DataError(f"{file} is empty; its first line must name the columns")
            check_header(file, header[1])
            schema = pa.schema([(name, pa.string()) for name in header[1]])
            batches = []
            for chunk in _chunks(checked_rows(file, cells, header[1])):
                columns = zip(*chunk, strict=True)
                batches.append(pa.table([pa.array(column, pa.string()) for column in columns], schema=schema))
        return pa.concat_tables(batches) if batches else schema.empty_table()

    return reader


def separated_cells(
    file: Path, lines: Iterable[str], delimiter: str, before: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """Every row that is not blank, with the number of its last line; `before` lines of the file came earlier."""
    csv.field_size_limit(LONGEST_CELL)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{file}, line {before + rows.line_num}, is not valid {file.suffix[1:].upper()}: {error}; a "
                "cell that holds a double quote, the separator or a line break must be quoted, and its quotes doubled "
                '("")'
            ) from None
        if row:
            yield before + rows.line_num, row


def check_header(file: Path, header: list[str]) -> None:
    if "" in (name.strip() for name in header):
        raise DataError(f"{file} has a column without a name; its first line must name every column, found: {header}")
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise DataError(f"{file} names the column '{repeated[0]}' more than once; give every column its own name")


def checked_rows(file: Path, cells: Iterator[tuple[int, list[str]]], header: list[str]) -> Iterator[list[str]]:
    for line, row in cells:
        if len(row) != len(header):
            raise DataError(
                f"{file}, line {line}, has {len(row)} cells where the header has {len(header)} ({', '.join(header)}); "
                "quote the cells that hold the separator"
            )
        yield row


def _json_lines(file: Path) -> pa.Table:
    with open(file, encoding="utf-8-sig") as lines:
        return _objects(file, json_objects(file, lines))


def json_objects(file: Path, lines: Iterable[str], before: int = 0) -> Iterator[dict[str, Any]]:
    """The object of each line that is not blank; `before` lines of the file came earlier."""
    for number, line in enumerate(lines, start=before + 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{file}, line {number}, is not valid JSON: {first_line(error)}") from None
        except RecursionError:
            raise DataError(f"{file}, line {number}, is nested too deeply") from None
        yield _object(row, f"{file}, line {number},")


def _json(file: Path) -> pa.Table:
    return _objects(file, iter(json_list(file)))


def json_list(file: Path) -> list[dict[str, Any]]:
    """The objects of a `.json` file, which is read whole: a list, or SQuAD's own form."""
    if file.stat().st_size > MOST_JSON:
        raise DataError(
            f"{file} has {file.stat().st_size:,} bytes, more than {MOST_JSON:,}, and is read whole; write one object "
            "a line and name it .jsonl"
        )
    try:
        rows = question_rows(json.loads(file.read_text(encoding="utf-8-sig")))
    except UnicodeDecodeError:
        raise
    except RecursionError:
        raise DataError(f"{file} is nested too deeply") from None
    except ValueError as error:
        hint = "; one object a line is JSONL: name the file .jsonl" if "Extra data" in str(error) else ""
        raise DataError(f"{file} is not valid JSON: {first_line(error)}{hint}") from None
    if not isinstance(rows, list):
        raise DataError(f"{file} holds a {type(rows).__name__}, must hold a list of objects, one for each row")
    return [_object(row, f"{file}, row {number},") for number, row in enumerate(rows, start=1)]


def _object(row: object, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f'{where} holds {json.dumps(row)[:40]}, must hold an object such as {{"text": "…"}}')
    return row


def _objects(file: Path, rows: Iterator[dict[str, object]]) -> pa.Table:
    import pyarrow as pa

    tables = []
    start = 0
    all_names: set[str] = set()
    for chunk in _chunks(rows):
        names = list(dict.fromkeys(name for row in chunk for name in row))
        all_names.update(names)
        if len(all_names) > MOST_NAMES:
            raise DataError(
                f"{file} has {len(all_names):,} different names in its objects, at most {MOST_NAMES:,} are allowed; "
                "each is a column with a cell in every row"
            )
        columns = []
        for name in names:
            try:
                columns.append(pa.array([row.get(name) for row in chunk]))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                raise DataError(
                    f"{file} holds values of different types in '{name}' (rows {start + 1} to {start + len(chunk)}): "
                    f"{first_line(error)}; write them all as texts, or all as numbers"
                ) from None
        tables.append(pa.table(columns, names=names))
        start += len(chunk)
    if not tables:
        raise DataError(f"{file} holds no rows; give a file with data in it")
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{file} holds values of different types in one column: {first_line(error)}") from None


def _text(file: Path) -> pa.Table:
    import pyarrow as pa

    with open(file, encoding="utf-8-sig") as text:
        tables = [pa.table({"text": pa.array(chunk, pa.string())}) for chunk in _chunks(paragraphs(text))]
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
