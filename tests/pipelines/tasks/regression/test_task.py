"""What a recipe may say about a regression task."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from pipelines.tasks.regression.task import Regression

GOOD = {"kind": "regression", "columns": ("a",), "label": "y", "train": "train.csv"}


def test_the_task_has_the_blocks_columns_and_metrics(tmp_path: Path):
    (tmp_path / "train.csv").write_text("a,y\n" + "".join(f"t{n},{n}.5\n" for n in range(20)))
    task = Regression.model_validate(GOOD, context={"folder": tmp_path}).task("mine")
    assert (task.kind, task.metrics, task.head.labels) == ("regression", ("pearson", "spearmanr"), ())
    train = task.rows("train")
    assert train.labels == [number + 0.5 for number in train.index]
    assert (len(train), len(task.rows("validation"))) == (18, 2)


def test_class_names_do_not_belong_to_numbers(tmp_path: Path):
    (tmp_path / "train.csv").write_text("a,y\nt,1\n")
    with pytest.raises(ValidationError, match="unknown key 'labels'"):
        Regression.model_validate(GOOD | {"labels": ("a", "b")}, context={"folder": tmp_path})
    with pytest.raises(ValidationError, match="is 'a', a text column too"):
        Regression.model_validate(GOOD | {"label": "a"}, context={"folder": tmp_path})
