"""GLUE: the official metrics of prediction files, the average of the leaderboard, and a submission as a zip.

Prediction files have `index` and `prediction`, reference files `label`; metrics are fractions.

The average is Wang et al. 2019, section 4, arxiv.org/abs/1804.07461: of a task with two metrics, or two test sets,
their mean counts; the score is the mean over the nine tasks in percent, each counted once. The diagnostics set has no
part in it. WNLI's development set contradicts its training set, so that most publications state the score without it
as well.

A submission is eleven TSV files in a zip, as the site's sample submission has them. Each has the header `index`,
`prediction` and a line for every row of the official test set. RTE, QNLI, MNLI and the diagnostics set take label
words, the others 0 and 1, and STS-B a number from 0 to 5. The rows are those of the test splits of `nyu-mll/glue` (its
data set card lists them; Wang et al. 2019, table 1, rounds them), in their order.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import CommandError, DataError
from pipelines.core.files import whole_file
from pipelines.core.registry import TASKS, nearest
from pipelines.evaluation.official.files import columns_of, listed, missing_ids, once_each
from pipelines.metrics.base import load_metric
from pipelines.tasks.evaluation import plain

PREFIX = "glue/"
OFFICIAL = ("gold_label", "Quality", "score", "is_duplicate")
"""What GLUE's own TSV files of MNLI, MRPC, STS-B and QQP call the label."""
LEAST, MOST = 0.0, 5.0
"""Between what the similarities of STS-B lie."""


def _with_labels(references: Path) -> dict[str, list[Any]]:
    """The columns of a file of references, the label under that name. Raises CommandError."""
    columns = columns_of(references, ())
    if "label" in columns:
        return columns
    official = next((name for name in OFFICIAL if name in columns), None)
    return columns_of(references, ("label",)) if official is None else {**columns, "label": columns[official]}


def score_glue(name: str, predictions: Path, references: Path) -> dict[str, float]:
    """The task's metrics, and `total` rows. Raises CommandError."""
    tasks = [each for each in TASKS if each.startswith(PREFIX)]
    if name not in tasks:
        raise CommandError(f"unknown task '{name}'.{nearest(name, tasks)} Available: {', '.join(tasks)}")
    task = TASKS.load(name)
    predicted, true = columns_of(predictions, ("index", "prediction")), _with_labels(references)
    predicted_rows = [_row(cell, predictions, at) for at, cell in enumerate(predicted["index"], start=1)]
    once_each(predicted_rows, predictions, "index")
    names = _row_names(true, references, set(predicted_rows))
    places = {index: at for at, index in enumerate(predicted_rows)}
    if missing := missing_ids(names, places):
        raise CommandError(
            f"{predictions} has no prediction for {len(missing)} of the {len(names)} rows of {references}: "
            f"index {listed(missing)}; add them"
        )
    if unknown := missing_ids(predicted_rows, set(names)):
        raise CommandError(
            f"{predictions} has {len(unknown)} rows that {references} has not: index {listed(unknown)}; is it "
            "another split?"
        )
    chosen = [predicted["prediction"][places[index]] for index in names]
    if not task.labels:
        values: Sequence[Any] = [_number(cell, predictions, index) for cell, index in zip(chosen, names, strict=True)]
        labels: Sequence[Any] = [
            _similarity(cell, references, index) for cell, index in zip(true["label"], names, strict=True)
        ]
        settings: dict[str, Any] = {}
    else:
        values = _classes(chosen, task.labels, predictions, names, "prediction")
        labels = _classes(true["label"], task.labels, references, names, "label")
        settings = {"classes": len(task.labels)}
    scores: dict[str, Any] = {}
    for metric in task.metrics:
        scores |= load_metric(metric).compute(values, labels, **settings)
    return scores | {"total": len(names)}


def _row_names(gold: Mapping[str, Sequence[object]], references: Path, predicted: set[int]) -> list[int]:
    """What the rows are called: by a column `index` or `idx` where the predictions use its values, else by their
    number from 0."""
    rows = list(range(len(gold["label"])))
    for column in ("index", "idx"):
        if column in gold:
            values = [_row(cell, references, at) for at, cell in enumerate(gold[column], start=1)]
            if set(values) == predicted or (predicted - set(rows) and predicted <= set(values)):
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


def _classes(
    cells: Sequence[object], labels: tuple[str, ...], path: Path, names: Sequence[int], what: str
) -> list[int]:
    """Ids of classes, from ids or words."""
    words = {plain(word): at for at, word in enumerate(labels)}
    classes: list[int] = []
    for cell, index in zip(cells, names, strict=True):
        text = "" if cell is None else str(cell).strip()
        number = (
            int(text) if text.lstrip("-").isdecimal() and not isinstance(cell, bool) else words.get(plain(text), -2)
        )
        if number == -1 and what == "label":
            raise CommandError(
                f"{path} has the label -1 (index {index}), which stands for labels that are not public; give "
                "a split whose labels are"
            )
        if not 0 <= number < len(labels):
            raise CommandError(
                f"{path} has the {what} {text[:40]!r} (index {index}), must be one of 0 … {len(labels) - 1} "
                f"or {', '.join(labels)}"
            )
        classes.append(number)
    return classes


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
        raise CommandError(
            f"{path} has the label -1 (index {index}), which stands for labels that are not public; give a "
            "split whose labels are"
        )
    if not LEAST <= value <= MOST:
        raise CommandError(f"{path} has the label {value:g} (index {index}), must be between {LEAST:g} and {MOST:g}")
    return value


AVERAGED = {
    "glue/cola": ("matthews_correlation",),
    "glue/sst2": ("accuracy",),
    "glue/mrpc": ("accuracy", "f1"),
    "glue/stsb": ("pearson", "spearmanr"),
    "glue/qqp": ("accuracy", "f1"),
    "glue/mnli": ("accuracy", "accuracy_mm"),
    "glue/qnli": ("accuracy",),
    "glue/rte": ("accuracy",),
    "glue/wnli": ("accuracy",),
}
"""What of each task is averaged."""
WNLI = "glue/wnli"
GLUE_SCORE = "glue"
"""Where the score stands in `metrics.json` and `details.json`."""


def task_scores(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Of each task that was scored in full, one number in percent."""
    return {
        name: 100.0 * sum(metrics[name][each] for each in parts) / len(parts)
        for name, parts in AVERAGED.items()
        if name in metrics and all(each in metrics[name] for each in parts)
    }


def glue_score(metrics: Mapping[str, Mapping[str, float]]) -> tuple[dict[str, float], dict[str, Any]]:
    """(`score` and `score_without_wnli` as far as their tasks are there, what they stand on). Both empty below two
    tasks."""
    each = task_scores(metrics)
    if len(each) < 2:
        return {}, {}
    missing = [name for name in AVERAGED if name not in each]
    averages: dict[str, float] = {}
    if not missing:
        averages["score"] = sum(each.values()) / len(each)
    if set(missing) <= {WNLI}:
        others = [value for name, value in each.items() if name != WNLI]
        averages["score_without_wnli"] = sum(others) / len(others)
    return averages, {"tasks": each, "missing": missing, "percent": ["score", "score_without_wnli"]}


WORDS = ("glue/mnli", "glue/ax", "glue/qnli", "glue/rte")
"""Tasks whose labels are written as words."""
WRITTEN = (1980, 1, 1, 0, 0, 0)
"""The time that all files carry, so that the same predictions give the same bytes."""


@dataclass(frozen=True)
class SubmissionPart:
    """One file of a submission."""

    file: str
    task: str
    split: str
    rows: int
    """Rows of the official test set."""


PARTS = (
    SubmissionPart("CoLA.tsv", "glue/cola", "test", 1_063),
    SubmissionPart("SST-2.tsv", "glue/sst2", "test", 1_821),
    SubmissionPart("MRPC.tsv", "glue/mrpc", "test", 1_725),
    SubmissionPart("STS-B.tsv", "glue/stsb", "test", 1_379),
    SubmissionPart("QQP.tsv", "glue/qqp", "test", 390_965),
    SubmissionPart("MNLI-m.tsv", "glue/mnli", "test_matched", 9_796),
    SubmissionPart("MNLI-mm.tsv", "glue/mnli", "test_mismatched", 9_847),
    SubmissionPart("QNLI.tsv", "glue/qnli", "test", 5_463),
    SubmissionPart("RTE.tsv", "glue/rte", "test", 3_000),
    SubmissionPart("WNLI.tsv", "glue/wnli", "test", 146),
    SubmissionPart("AX.tsv", "glue/ax", "test", 1_104),
)
"""The files, in the order of the site's sample submission."""


def lacking(part: SubmissionPart, trained: Sequence[str]) -> str | None:
    """Why a file cannot be written by models that were trained on these tasks; None where it can."""
    task = TASKS.load(part.task)
    needed = task.trained_by or part.task
    if needed not in trained:
        return f"{part.file} (no model was trained on {needed})"
    try:
        source, split = task.places[part.split].open(part.split)
        splits = source.splits()
        if split not in splits:
            return f"{part.file} ({source.describe()} has no split '{split}')"
        rows = len(source.load(split))
    except DataError as error:
        return f"{part.file} ({str(error).rstrip('.')})"
    if rows != part.rows:
        return (
            f"{part.file} ({source.describe()}, split '{split}', has {rows} rows where the official test set has "
            f"{part.rows})"
        )
    return None


def possible(trained: Sequence[str], partial: bool) -> tuple[list[SubmissionPart], list[str]]:
    """(the files that can be written, why the others cannot). Raises CommandError where one cannot, unless
    `partial`, or where none can."""
    why = {part: lacking(part, trained) for part in PARTS}
    missing = [reason for reason in why.values() if reason is not None]
    if len(missing) == len(PARTS) or (missing and not partial):
        rest = "" if len(missing) == len(PARTS) else "; give what is missing, or leave it out with --partial"
        raise CommandError(f"the submission lacks {len(missing)} of {len(PARTS)} files: {', '.join(missing)}{rest}")
    return [part for part in PARTS if why[part] is None], missing


def lines(part: SubmissionPart, logits: NDArray[np.floating]) -> str:
    """A file's text, from logits (rows, outputs) in the task's order of classes."""
    task = TASKS.load(part.task)
    if len(logits) != part.rows:
        raise DataError(f"{part.file} needs {part.rows} predictions, found {len(logits)}")
    if not task.labels:
        predictions = [f"{value:.3f}" for value in np.clip(logits[:, 0].astype(np.float64), 0.0, 5.0)]
    else:
        chosen = logits.argmax(axis=1)
        predictions = [task.labels[each] for each in chosen] if part.task in WORDS else [str(each) for each in chosen]
    return "".join(
        f"{row}\n" for row in ("index\tprediction", *(f"{index}\t{each}" for index, each in enumerate(predictions)))
    )


def write_submission(path: Path, files: Mapping[str, str]) -> None:
    """A zip of these texts by name, whole or not at all."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, WRITTEN), text, zipfile.ZIP_DEFLATED)
    with whole_file(path) as temporary:
        temporary.write_bytes(buffer.getvalue())
