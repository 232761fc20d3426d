"""The table of GLUE tasks against the paper, and against the real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.core.errors import DataError
from pipelines.core.registry import TASKS

GLUE = {name: TASKS.load(name) for name in TASKS if name.startswith("glue/")}

METRICS = {
    "cola": ("matthews_correlation",), "sst2": ("accuracy",), "mrpc": ("accuracy", "f1"), "stsb": ("pearson", "spearmanr"),
    "qqp": ("accuracy", "f1"), "mnli": ("accuracy",), "qnli": ("accuracy",), "rte": ("accuracy",), "wnli": ("accuracy",),
    "ax": ("matthews_correlation",),
}  # fmt: skip
"""Table 1 of the paper (Pearson and Spearman as the benchmark's site has them); section 4 for the diagnostics set."""

COUNTS = {
    "cola": (8551, 1043),
    "sst2": (67349, 872),
    "mrpc": (3668, 408),
    "stsb": (5749, 1500),
    "rte": (2490, 277),
    "wnli": (635, 71),
}
"""Rows of the sets that the mirror holds complete."""

PRESENT = ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]


@pytest.fixture(autouse=True)
def real(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINERY_DATA", str(mirror))


def test_the_table_has_the_papers_tasks_and_metrics():
    assert {name: task.metrics for name, task in GLUE.items()} == {
        f"glue/{name}": each for name, each in METRICS.items()
    }


@pytest.mark.parametrize("name", PRESENT)
def test_columns_and_classes_are_those_of_the_files(name: str):
    task = GLUE[f"glue/{name}"]
    source, split = task.places["train"].open("train")
    data = source.load(split)
    assert list(data.column_names) == [*task.columns, "label", "idx"]
    assert tuple(getattr(data.features["label"], "names", ())) == task.head.labels


@pytest.mark.parametrize("name", PRESENT)
def test_rows_are_those_of_the_files(name: str):
    task = GLUE[f"glue/{name}"]
    for split in ("train", *task.evaluation_splits.values()):
        source, inner = task.places[split].open(split)
        data, rows = source.load(inner), task.rows(split)
        assert list(rows.texts) == data[task.columns[0]][:]
        assert rows.pairs is None if len(task.columns) == 1 else list(rows.pairs or ()) == data[task.columns[1]][:]
        assert rows.labels == data["label"][:]
        assert set(rows.labels) == set(range(len(task.head.labels))) or name == "stsb"
    if name in COUNTS:
        assert tuple(len(task.rows(split)) for split in ("train", "validation")) == COUNTS[name]


@pytest.mark.parametrize("name", ["cola", "sst2", "stsb", "qnli", "rte", "wnli"])
def test_hidden_labels_are_none(name: str):
    assert GLUE[f"glue/{name}"].rows("test").labels is None


def test_public_test_labels_are_kept():
    assert set(GLUE["glue/mrpc"].rows("test").labels or ()) == {0, 1}


def test_mnli_is_scored_on_both_of_its_validation_splits():
    task = GLUE["glue/mnli"]
    assert task.evaluation_splits == {"": "validation_matched", "_mm": "validation_mismatched"}
    assert set(task.content()) == {"train", "validation_matched", "validation_mismatched"}
    assert task.rows("validation_matched").texts != task.rows("validation_mismatched").texts


def test_the_diagnostics_set_is_asked_of_mnlis_model():
    task = GLUE["glue/ax"]
    assert task.trained_by == "glue/mnli"
    assert task.head == GLUE["glue/mnli"].head
    assert task.evaluation_splits == {"": "test"}
    with pytest.raises(DataError, match="task 'glue/ax' has no training rows; it is asked of 'glue/mnli'"):
        task.rows("train")


def test_scores_of_stsb_are_numbers_from_0_to_5():
    labels = GLUE["glue/stsb"].rows("train").labels
    assert labels is not None
    assert (min(labels), max(labels)) == (0.0, 5.0)
    assert all(isinstance(label, float) for label in labels)


def test_the_diagnostics_rows_have_no_public_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "glue" / "ax").mkdir(parents=True)
    row = '{"premise": "A.", "hypothesis": "B.", "label": -1, "idx": 0}\n'
    (tmp_path / "glue" / "ax" / "test.jsonl").write_text(row * 3)
    monkeypatch.setenv("FINERY_DATA", str(tmp_path))
    rows = GLUE["glue/ax"].rows("test")
    assert (len(rows), rows.labels, list(rows.index)) == (3, None, [0, 1, 2])
