"""What a recipe may say about a classification task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.core.config import flatten
from pipelines.tasks.base import SplitLocation
from pipelines.tasks.classification.task import Classification

GOOD = {"kind": "classification", "columns": ("a", "b"), "label": "y", "train": "train.csv"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train.csv", "dev.csv", "test.csv"):
        (tmp_path / name).write_text("a,b,y\nq,r,1\ns,t,0\n")
    return tmp_path


def block(folder: Path, **changes: Any) -> Classification:
    return Classification.model_validate(GOOD | changes, context={"folder": folder})


def test_the_task_has_the_blocks_columns_files_and_metrics(folder: Path):
    task = block(folder, validation="dev.csv", test="test.csv", labels=(1, 0)).task("mine")
    assert (task.name, task.kind, task.columns, task.label) == ("mine", "classification", ("a", "b"), "y")
    assert task.metrics == ("accuracy", "f1")
    assert task.labels == ("1", "0")
    assert task.places == {
        split: SplitLocation(str(folder / name), None, None)
        for split, name in {"train": "train.csv", "validation": "dev.csv", "test": "test.csv"}.items()
    }
    assert task.rows("train").labels == [0, 1]
    assert task.rows("validation").pairs == ["r", "t"]


@pytest.mark.parametrize(
    ("changes", "key", "expected"),
    [
        ({"columns": ()}, "columns", "has 0 entries, must have at least 1"),
        ({"columns": ("a", "b", "c")}, "columns", "has 3 entries, must have at most 2"),
        ({"columns": ("a", "a")}, "columns", "names 'a' twice"),
        ({"columns": ("a", "y")}, "label", "is 'y', a text column too"),
        ({"labels": ("1",)}, "labels", "is [1], must name at least two classes, each once"),
        ({"labels": ("1", 1)}, "labels", "is [1, 1], must name at least two classes, each once"),
        ({"validation": "dve.csv"}, "validation", "'dve.csv' does not exist"),
        ({"valid": "dev.csv"}, "valid", "unknown key 'valid'. Did you mean 'validation'?"),
    ],
)
def test_contradictions_are_mistakes(folder: Path, changes: dict[str, Any], key: str, expected: str):
    with pytest.raises(ValidationError) as caught:
        block(folder, **changes)
    ((place, message),) = flatten(caught.value)
    assert ".".join(map(str, place)) == key
    assert message.startswith(expected), message


def test_names_of_classes_may_be_truth_values(folder: Path):
    assert block(folder, labels=(False, True)).labels == ("false", "true")


def test_a_data_set_with_configurations_serves_every_split(
    mirror: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("FINERY_DATA", str(mirror))
    glue = {"train": "nyu-mll/glue", "validation": "nyu-mll/glue", "name": "mrpc"}
    about = {"kind": "classification", "columns": ("sentence1", "sentence2"), "label": "label"}
    task = Classification.model_validate(about | glue, context={"folder": tmp_path}).task("mine")
    assert task.head.labels == ("not_equivalent", "equivalent")
    assert (len(task.rows("train")), len(task.rows("validation"))) == (3668, 408)
