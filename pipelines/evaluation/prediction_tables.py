"""Predictions as a table that people read: one row an example, in Parquet, JSON lines, CSV or TSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipelines.core.errors import CommandError
from pipelines.core.files import finite, whole_file

ENDINGS = (".parquet", ".jsonl", ".csv", ".tsv")


def write_table(path: Path, columns: Mapping[str, Sequence[object]]) -> None:
    """Write the columns as the path's ending says, whole or not at all. Lists in CSV and TSV are JSON. Raises
    CommandError."""
    check_ending(path)
    names = list(columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    with whole_file(path) as temporary:
        if path.suffix == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(
                pa.table({name: list(values) for name, values in columns.items()}), temporary, compression="zstd"
            )
        elif path.suffix == ".jsonl":
            temporary.write_text(
                "".join(json.dumps(finite(row), ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
            )
        else:
            text = io.StringIO()
            writer = csv.writer(text, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
            writer.writerow(names)
            writer.writerows([[_cell(row[name]) for name in names] for row in rows])
            temporary.write_text(text.getvalue(), encoding="utf-8")


def _cell(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else "" if value is None else value


def check_ending(path: Path) -> None:
    """Raise CommandError for a file that cannot be written."""
    if path.suffix not in ENDINGS:
        raise CommandError(f"--out '{path}' must end with one of {', '.join(ENDINGS)}")
