"""Predictions as a table that people read: one row an example, answers in words, and how likely they are.

A probability is the softmax of the logits, as the model gives them: it is not calibrated. Of spans it is the softmax
over the best spans and, where a question may have none, "no answer", as BERT's `run_squad.py` has it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import CommandError
from pipelines.core.files import whole_file
from pipelines.core.interfaces import Task
from pipelines.evaluation.calibration import softmax
from pipelines.tasks.causal.evaluation import CompletionPredictions
from pipelines.tasks.extractive_qa.evaluation import SpanPredictions
from pipelines.tasks.multiple_choice.evaluation import OptionPredictions
from pipelines.tasks.multiple_choice.task import LETTERS
from pipelines.tasks.predictions import ClassPredictions, SplitPredictions, TextPredictions
from pipelines.tasks.scoring import checked_logits
from pipelines.tasks.token_classification.evaluation import TagPredictions, in_words

ENDINGS = (".parquet", ".jsonl", ".csv", ".tsv")
Columns = dict[str, list[Any]]


def columns_of(predictions: SplitPredictions, task: Task) -> Columns:
    """The columns of a split's predictions: `index`, what was read, `prediction`, and probabilities. Raises
    ModelError."""
    rows: Any = predictions.rows
    columns: Columns = {"index": [int(each) for each in rows.index]}
    if isinstance(predictions, TagPredictions):
        columns["tokens"] = [list(words) for words in rows.words]
    else:
        columns["text"] = list(rows.texts)
        if rows.pairs is not None:
            columns["text_pair"] = list(rows.pairs)
    return columns | _answers(predictions, task)


def _answers(predictions: SplitPredictions, task: Task) -> Columns:
    if isinstance(predictions, ClassPredictions):
        return _classes(predictions, task)
    if isinstance(predictions, OptionPredictions):
        options = [list(row) for row in predictions.rows.options]  # type: ignore[attr-defined]
        return {"options": options} | _decided(predictions.logits, list(LETTERS[: predictions.logits.shape[1]]))
    if isinstance(predictions, TagPredictions):
        likely = [softmax(np.nan_to_num(row)).max(axis=-1) for row in predictions.logits]
        unread = [np.isnan(row[:, 0]) for row in predictions.logits]  # words behind the cut
        return {
            "prediction": in_words(predictions.said, predictions.names),
            "probabilities": [
                [None if out else float(value) for value, out in zip(*pair, strict=True)]
                for pair in zip(likely, unread, strict=True)
            ],
        }
    if isinstance(predictions, SpanPredictions):
        return _spans(predictions)
    if isinstance(predictions, TextPredictions | CompletionPredictions):
        return {"prediction": [] if predictions.texts is None else [str(text) for text in predictions.texts]}
    columns = (
        predictions.table().drop_columns(["benchmark", "split", "index"]).to_pydict()
    )  # as `predictions.parquet` has it
    return {"prediction": [str(each) for each in predictions.said], **columns}


def _classes(predictions: ClassPredictions, task: Task) -> Columns:
    names = task.head.labels
    logits = checked_logits(predictions.logits, len(names) or 1, task.name)
    return _decided(logits, list(names)) if names else {"prediction": [float(value) for value in logits[:, 0]]}


def _decided(logits: NDArray[np.floating], names: Sequence[str]) -> Columns:
    likely = softmax(logits)
    chosen = logits.argmax(axis=1)
    columns: Columns = {
        "prediction": [names[at] for at in chosen],
        "probability": [float(row[at]) for row, at in zip(likely, chosen, strict=True)],
    }
    return columns | {f"probability_{name}": [float(value) for value in likely[:, at]] for at, name in enumerate(names)}


def _spans(predictions: SpanPredictions) -> Columns:
    answers = [str(text) for text in predictions.said]
    likely: list[float | None] = []
    starts: list[int | None] = []
    for answer, spans in zip(answers, predictions.found, strict=True):
        scores = [span.score for span in spans.best] + ([spans.null_score] if predictions.may_be_none else [])
        place = 0 if answer else len(scores) - 1
        likely.append(
            float(softmax(np.array(scores))[place]) if scores and (answer or predictions.may_be_none) else None
        )
        starts.append(spans.best[0].answer_start if answer and spans.best else None)
    return {"id": list(predictions.ids), "prediction": answers, "probability": likely, "answer_start": starts}


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
            temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
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
