"""GLUE prediction files, `index` and `prediction`, against files with `label`: the official metrics of each task, as fractions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pipelines.errors import CommandError
from pipelines.evaluation.labels import plain
from pipelines.evaluation.prediction_files import columns_of, listed, missing_ids, once_each
from pipelines.registry import METRICS, TASKS, nearest

PREFIX = "glue/"
LEAST, MOST = 0.0, 5.0
"""Between what the similarities of STS-B lie."""


def score_glue(name: str, predictions: Path, references: Path) -> dict[str, Any]:
    """The task's metrics, and `total` rows. Raises CommandError."""
    known = [each for each in TASKS if each.startswith(PREFIX)]
    if name not in known:
        raise CommandError(f"unknown task '{name}'.{nearest(name, known)} Available: {', '.join(known)}")
    task = TASKS.load(name)
    given, gold = columns_of(predictions, ("index", "prediction")), columns_of(references, ("label",))
    said_at = [_row(cell, predictions, at) for at, cell in enumerate(given["index"], start=1)]
    once_each(said_at, predictions, "index")
    names = _row_names(gold, references, set(said_at))
    place = {index: at for at, index in enumerate(said_at)}
    if missing := missing_ids(names, place):
        raise CommandError(f"{predictions} has no prediction for {len(missing)} of the {len(names)} rows of {references}: index {listed(missing)}; add them")
    if strange := missing_ids(said_at, set(names)):
        raise CommandError(f"{predictions} has {len(strange)} rows that {references} has not: index {listed(strange)}; is it another split?")
    chosen = [given["prediction"][place[index]] for index in names]
    if task.kind == "regression":
        said: Sequence[Any] = [_number(cell, predictions, index) for cell, index in zip(chosen, names, strict=True)]
        right: Sequence[Any] = [_similarity(cell, references, index) for cell, index in zip(gold["label"], names, strict=True)]
        settings: dict[str, Any] = {}
    else:
        said = _classes(chosen, task.labels, predictions, names, "prediction")
        right = _classes(gold["label"], task.labels, references, names, "label")
        settings = {"classes": len(task.labels)}
    scores: dict[str, Any] = {}
    for metric in task.metrics:
        scores |= import_module(METRICS.module(metric)).compute(said, right, **settings)
    return scores | {"total": len(names)}


def _row_names(gold: dict[str, list[Any]], references: Path, said: set[int]) -> list[int]:
    """What the rows are called: by a column `index` or `idx` where the predictions use its values, else by their number from 0."""
    rows = list(range(len(gold["label"])))
    for column in ("index", "idx"):
        if column in gold:
            values = [_row(cell, references, at) for at, cell in enumerate(gold[column], start=1)]
            if set(values) == said or (said - set(rows) and said <= set(values)):
                once_each(values, references, column)
                return values
    return rows


def _row(cell: Any, path: Path, at: int) -> int:
    try:
        if isinstance(cell, bool) or (isinstance(cell, float) and not cell.is_integer()):
            raise ValueError
        return int(cell)
    except (TypeError, ValueError, OverflowError):
        raise CommandError(f"{path}, row {at}, has the index {str(cell)[:40]!r}, must be a whole number") from None


def _classes(cells: Sequence[Any], labels: tuple[str, ...], path: Path, names: Sequence[int], what: str) -> list[int]:
    """Ids of classes, from ids or words."""
    words = {plain(word): at for at, word in enumerate(labels)}
    found: list[int] = []
    for cell, index in zip(cells, names, strict=True):
        text = "" if cell is None else str(cell).strip()
        number = int(text) if text.lstrip("-").isdecimal() and not isinstance(cell, bool) else words.get(plain(text), -2)
        if number == -1 and what == "label":
            raise CommandError(f"{path} has the label -1 (index {index}), which stands for labels that are not public; give a split whose labels are")
        if not 0 <= number < len(labels):
            raise CommandError(
                f"{path} has the {what} {text[:40]!r} (index {index}), must be one of 0 … {len(labels) - 1} or {', '.join(labels)}"
            )
        found.append(number)
    return found


def _number(cell: Any, path: Path, index: int) -> float:
    try:
        value = math.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise CommandError(f"{path} has {str(cell)[:40]!r} (index {index}), must be a finite number")
    return value


def _similarity(cell: Any, path: Path, index: int) -> float:
    value = _number(cell, path, index)
    if value == -1:
        raise CommandError(f"{path} has the label -1 (index {index}), which stands for labels that are not public; give a split whose labels are")
    if not LEAST <= value <= MOST:
        raise CommandError(f"{path} has the label {value:g} (index {index}), must be between {LEAST:g} and {MOST:g}")
    return value
