"""What every task that a recipe may name must do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import DataError
from pipelines.core.interfaces import Head
from pipelines.core.registry import METRICS, TASK_KINDS, TASKS
from pipelines.tasks.base import LabelledTask
from pipelines.tasks.preference.rows import PreferenceRows
from tests.covering import LONG

ABSENT = {"glue/ax": "the mirror has no diagnostics set; its rows are tested with a stand-in in test_glue.py"}
MANY = 4000
"""Evaluated rows of a task whose rows are not all read a second time, nor those that it learns from, in a usual run."""
UNTRAINED = tuple(name for name in TASKS if TASKS.load(name).trained_by)
"""Tasks whose training rows may be out of reach: they are asked of another task's model."""


@pytest.fixture(params=list(TASKS), scope="module")
def task(request: pytest.FixtureRequest) -> LabelledTask:
    found = TASKS.load(request.param)
    assert isinstance(found, LabelledTask)
    assert found.name == request.param
    return found


@pytest.fixture(scope="module")
def readable(task: LabelledTask, request: pytest.FixtureRequest) -> Iterator[LabelledTask]:
    with pytest.MonkeyPatch.context() as patch:
        if not task.name.startswith("builtin/"):
            mirror: Path = request.getfixturevalue("mirror")
            patch.setenv("FINERY_DATA", str(mirror))
        yield task


@pytest.fixture(scope="module")
def rows_of(readable: LabelledTask) -> Callable[[str], Any]:
    """The rows of a split, read once."""
    return cache(lambda split: readable.rows(split))


def test_it_names_its_metrics_and_splits(task: LabelledTask):
    assert task.metrics
    assert set(task.metrics) <= set(METRICS)
    assert isinstance(task.evaluation_splits, Mapping)
    assert "" in task.evaluation_splits
    assert set(task.evaluation_splits.values()) <= set(task.splits)
    assert "train" in task.splits or task.trained_by in TASKS


def test_its_head_is_known_without_reading_data(task: LabelledTask, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FINERY_DATA", raising=False)
    assert isinstance(task.head, Head)
    assert task.head.kind == TASK_KINDS.load(task.kind).head_kind
    assert len(task.head.labels) >= 2 or task.kind != "classification"


def test_the_columns_of_its_rows_have_one_length_and_labels_in_range(
    readable: LabelledTask, rows_of: Callable[[str], Any]
):
    """Training rows, up to a million, with the long tests."""
    training = ["train"] if os.environ.get(LONG) and readable.name not in UNTRAINED else []
    for split in (*training, *readable.evaluation_splits.values()):
        if readable.name in ABSENT:
            with pytest.raises(DataError):
                readable.rows(split)
            continue
        rows = rows_of(split)
        assert len(rows) > 0
        assert rows.labels is not None
        assert len(rows.texts) == len(rows.labels) == len(rows.index) == len(set(rows.index))
        assert (rows.pairs is not None) == (len(readable.columns) == 2 and readable.kind != "multiple_choice")
        assert rows.pairs is None or len(rows.pairs) == len(rows)
        assert all(isinstance(text, str) for text in rows.texts)
        if readable.kind == "classification":
            assert set(rows.labels) <= set(range(len(readable.head.labels)))
        if readable.kind == "qa":
            assert all(isinstance(text, str) and text for answers in rows.labels for text in answers)
            assert len(set(rows.ids)) == len(rows)
        if readable.kind == "multiple_choice":
            assert {len(options) for options in rows.options} == {4}
            assert set(rows.labels) <= set(range(4))
        if readable.kind in ("seq2seq", "causal"):
            assert all(isinstance(label, str) for label in rows.labels)


@pytest.mark.wider
def test_a_limit_takes_the_first_rows(readable: LabelledTask, rows_of: Callable[[str], Any]):
    if readable.name in ABSENT:
        return
    split = next(iter(readable.evaluation_splits.values()))
    few, many = readable.rows(split, limit=3), readable.rows(split, limit=10)
    assert len(few) == 3
    assert list(few.texts) == list(many.texts)[:3]
    assert list(few.labels or ()) == list(many.labels or ())[:3]
    if len(rows_of(split)) < MANY or os.environ.get(LONG):
        assert len(readable.rows(split, limit=10**9)) == len(rows_of(split))


@pytest.mark.wider
def test_no_evaluated_row_is_a_training_row(readable: LabelledTask, rows_of: Callable[[str], Any]):
    """Same text, or same pair, in both: GLUE itself has a few, the embedded task has none.

    With the long tests those of which many are read too; that no two splits are one file, their hashes say.
    """
    if readable.name in ABSENT or readable.name in UNTRAINED:
        return
    if not os.environ.get(LONG) and len(rows_of(next(iter(readable.evaluation_splits.values())))) >= MANY:
        return
    allowed = 0.0 if readable.name.startswith("builtin/") else 0.02
    seen = set(what_is_asked(rows_of("train")))
    for split in readable.evaluation_splits.values():
        rows = rows_of(split)
        shared = sum(row in seen for row in what_is_asked(rows))
        assert shared <= allowed * len(rows)


def what_is_asked(rows: Any) -> list[Any]:
    """What the model reads of each row."""
    if isinstance(rows, PreferenceRows):
        return [
            (text, one.completion, other.completion)
            for text, one, other in zip(rows.texts, rows.chosen, rows.rejected, strict=True)
        ]
    return list(zip(rows.texts, rows.pairs or rows.texts, strict=True))


def test_its_content_has_a_hash_for_every_split_it_is_learnt_and_scored_on(readable: LabelledTask):
    if readable.name in ABSENT:
        with pytest.raises(DataError):
            readable.content()
        return
    content = readable.content()
    learnt = [] if readable.name in UNTRAINED else ["train"]
    assert set(content) == {*learnt, *readable.evaluation_splits.values()}
    assert len(set(content.values())) == len(content)
    assert content == readable.content()
