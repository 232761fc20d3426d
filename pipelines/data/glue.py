"""GLUE: nine tasks and the diagnostics set as one table.

Wang et al. 2019, "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding", table 1,
arxiv.org/abs/1804.07461. Columns, class names and splits are those of the data set `nyu-mll/glue`; labels of most
test splits are not public and stand as -1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipelines.data.tasks import Place, Task

PATH = "nyu-mll/glue"
ENTAILMENT = ("entailment", "neutral", "contradiction")


def _task(
    name: str,
    columns: tuple[str, ...],
    labels: tuple[str, ...],
    *metrics: str,
    kind: Literal["classification", "regression"] = "classification",
    evaluation_splits: Mapping[str, str] | None = None,
    splits: tuple[str, ...] = ("train", "validation", "test"),
    trained_by: str | None = None,
) -> Task:
    return Task(
        name=f"glue/{name}",
        kind=kind,
        columns=columns,
        label="label",
        labels=labels or None,
        metrics=metrics,
        places={split: Place(PATH, name, split) for split in splits},
        evaluation_splits=evaluation_splits or {"": "validation"},
        hidden_label=-1,
        trained_by=trained_by,
        empty_texts=True,  # QQP has a few, and every system is scored with them
    )


COLA = _task("cola", ("sentence",), ("unacceptable", "acceptable"), "matthews_correlation")
SST2 = _task("sst2", ("sentence",), ("negative", "positive"), "accuracy")
MRPC = _task("mrpc", ("sentence1", "sentence2"), ("not_equivalent", "equivalent"), "accuracy", "f1")
STSB = _task("stsb", ("sentence1", "sentence2"), (), "pearson", "spearmanr", kind="regression")
QQP = _task("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), "accuracy", "f1")
MNLI = _task(
    "mnli", ("premise", "hypothesis"), ENTAILMENT, "accuracy",
    evaluation_splits={"": "validation_matched", "_mm": "validation_mismatched"},
    splits=("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched"),
)
QNLI = _task("qnli", ("question", "sentence"), ("entailment", "not_entailment"), "accuracy")
RTE = _task("rte", ("sentence1", "sentence2"), ("entailment", "not_entailment"), "accuracy")
WNLI = _task("wnli", ("sentence1", "sentence2"), ("not_entailment", "entailment"), "accuracy")
AX = _task(
    "ax", ("premise", "hypothesis"), ENTAILMENT, "matthews_correlation",
    evaluation_splits={"": "test"}, splits=("test",), trained_by="glue/mnli",
)
"""The diagnostics set: it is asked of the model that learnt MNLI, and its labels are not public."""

GLUE = {task.name: task for task in (COLA, SST2, MRPC, STSB, QQP, MNLI, QNLI, RTE, WNLI, AX)}
"""Every task, by name."""
