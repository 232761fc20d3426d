"""A submission to the GLUE benchmark: eleven TSV files in a zip, as the site's sample submission has them.

Each has the header `index`, `prediction` and a line for every row of the official test set. RTE, QNLI, MNLI and the
diagnostics set take label words, the others 0 and 1, and STS-B a number from 0 to 5. The rows are those of the test splits
of `nyu-mll/glue` (its data set card lists them; Wang et al. 2019, table 1, rounds them), in their order.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.errors import CommandError, DataError
from pipelines.evaluation.atomic import whole_file
from pipelines.registry import TASKS

WORDS = ("glue/mnli", "glue/ax", "glue/qnli", "glue/rte")
"""Tasks whose labels are written as words."""
WRITTEN = (1980, 1, 1, 0, 0, 0)
"""The time that all files carry, so that the same predictions give the same bytes."""


@dataclass(frozen=True)
class Part:
    """One file of a submission."""

    file: str
    task: str
    split: str
    rows: int
    """Rows of the official test set."""


PARTS = (
    Part("CoLA.tsv", "glue/cola", "test", 1_063),
    Part("SST-2.tsv", "glue/sst2", "test", 1_821),
    Part("MRPC.tsv", "glue/mrpc", "test", 1_725),
    Part("STS-B.tsv", "glue/stsb", "test", 1_379),
    Part("QQP.tsv", "glue/qqp", "test", 390_965),
    Part("MNLI-m.tsv", "glue/mnli", "test_matched", 9_796),
    Part("MNLI-mm.tsv", "glue/mnli", "test_mismatched", 9_847),
    Part("QNLI.tsv", "glue/qnli", "test", 5_463),
    Part("RTE.tsv", "glue/rte", "test", 3_000),
    Part("WNLI.tsv", "glue/wnli", "test", 146),
    Part("AX.tsv", "glue/ax", "test", 1_104),
)
"""The files, in the order of the site's sample submission."""


def lacking(part: Part, trained: Sequence[str]) -> str | None:
    """Why a file cannot be written by models that were trained on these tasks; None where it can."""
    task = TASKS.load(part.task)
    needed = task.trained_by or part.task
    if needed not in trained:
        return f"{part.file} (no model was trained on {needed})"
    try:
        source, split = task.places[part.split].open(part.split)
        found = source.splits()
        if split not in found:
            return f"{part.file} ({source.describe()} has no split '{split}')"
        rows = len(source.load(split))
    except DataError as error:
        return f"{part.file} ({str(error).rstrip('.')})"
    if rows != part.rows:
        return f"{part.file} ({source.describe()}, split '{split}', has {rows} rows where the official test set has {part.rows})"
    return None


def possible(trained: Sequence[str], partial: bool) -> tuple[list[Part], list[str]]:
    """(the files that can be written, why the others cannot). Raises CommandError where one cannot, unless `partial`, or where none can."""
    why = {part: lacking(part, trained) for part in PARTS}
    missing = [reason for reason in why.values() if reason is not None]
    if len(missing) == len(PARTS) or (missing and not partial):
        rest = "" if len(missing) == len(PARTS) else "; give what is missing, or leave it out with --partial"
        raise CommandError(f"the submission lacks {len(missing)} of {len(PARTS)} files: {', '.join(missing)}{rest}")
    return [part for part in PARTS if why[part] is None], missing


def lines(part: Part, logits: NDArray[Any]) -> str:
    """A file's text, from logits (rows, outputs) in the task's order of classes."""
    task = TASKS.load(part.task)
    if len(logits) != part.rows:
        raise DataError(f"{part.file} needs {part.rows} predictions, found {len(logits)}")
    if task.kind == "regression":
        said = [f"{value:.3f}" for value in np.clip(logits[:, 0].astype(np.float64), 0.0, 5.0)]
    else:
        chosen = logits.argmax(axis=1)
        said = [task.labels[each] for each in chosen] if part.task in WORDS else [str(each) for each in chosen]
    return "".join(f"{row}\n" for row in ("index\tprediction", *(f"{index}\t{each}" for index, each in enumerate(said))))


def write_submission(path: Path, files: Mapping[str, str]) -> None:
    """A zip of these texts by name, whole or not at all."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, WRITTEN), text, zipfile.ZIP_DEFLATED)
    with whole_file(path) as temporary:
        temporary.write_bytes(buffer.getvalue())
