"""How much data a stage will read, as far as that can be told without reading the data.

Parquet says it in its footer; a text file that is not too large is counted. Everything else is unknown: None.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import DataError
from pipelines.parquet_footer import read_footer

if TYPE_CHECKING:
    from pipelines.data.preference_reference import PreferenceReference
    from pipelines.data.prompts import Prompts
    from pipelines.data.references import DatasetReference
    from pipelines.data.sources import Source
    from pipelines.data.tasks import Task

LARGEST_COUNTED = 32 << 20
"""Bytes of a text file up to which its rows are counted: about a tenth of a second."""


def task_rows(task: Task, split: str) -> int | None:
    """Rows of a split of a task, what is held out left out."""
    from pipelines.data.tasks import HELD_OUT, held_out_rows

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
