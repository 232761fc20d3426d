"""The embedded set as a source and as a task."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pipelines.core.errors import DataError
from pipelines.core.registry import TASKS
from pipelines.data import python_docs
from pipelines.data.builtin import find
from pipelines.data.references import DatasetReference

TASK = TASKS.load("builtin/python-docs")


def test_its_text_is_read_like_any_other(tmp_path: Path):
    block = DatasetReference.model_validate({"path": "builtin/python-docs"}, context={"folder": tmp_path})
    assert block.rows() == [row["text"] for row in python_docs.text_rows("train")]


def test_its_task_has_the_rows_of_the_documentation():
    for split in ("train", "validation"):
        rows, expected = TASK.rows(split), python_docs.labelled_rows(split)
        assert rows.pairs is None
        assert list(zip(rows.texts, rows.labels or (), strict=True)) == [
            (row["text"], row["label"]) for row in expected
        ]
    assert TASK.head.labels == python_docs.LABELS
    assert set(Counter(TASK.rows("train").labels)) == set(range(len(python_docs.LABELS)))


def test_every_split_and_configuration_has_its_own_hash():
    hashes = {
        find("builtin/python-docs", name).content_hash(split)
        for name in ("text", "labelled")
        for split in ("train", "validation")
    }  # type: ignore[union-attr]
    assert len(hashes) == 4
    source = find("builtin/python-docs", None)
    assert source is not None
    assert source.content_hash("train") in hashes


def test_what_it_does_not_have_is_said():
    assert find("glue", None) is None
    with pytest.raises(DataError, match=r"no embedded data set 'builtin/python'. Did you mean 'builtin/python-docs'\?"):
        find("builtin/python", None)
    with pytest.raises(DataError, match=r"has no configuration 'labeled'. Did you mean 'labelled'\?"):
        find("builtin/python-docs", "labeled")
    source = find("builtin/python-docs", None)
    assert source is not None
    with pytest.raises(DataError, match=r"has no split 'test'. Splits found: train, validation"):
        source.load("test")
