"""Parts that are done stay done; half a part is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipelines.core.files import COMPLETE
from pipelines.feedback.progress import FeedbackProgress, write_lines
from pipelines.runs.workspace import StageStore


def test_a_part_is_made_once(tmp_path: Path) -> None:
    told: list[int] = []
    one = FeedbackProgress(tmp_path, lambda number, place: told.append(number))
    assert one.done(1, lambda: [{"x": 0.1 + 0.2}]) == [{"x": 0.1 + 0.2}]
    assert one.done(2, list) == []
    again = FeedbackProgress(tmp_path, lambda number, place: told.append(number))
    assert again.done(1, lambda: pytest.fail("it is there")) == [{"x": 0.1 + 0.2}]
    assert again.done(2, lambda: pytest.fail("it is there")) == []
    assert told == [1, 2]
    again.clear()
    assert again.rows(1) is None


def test_half_a_part_is_removed(tmp_path: Path) -> None:
    one = FeedbackProgress(tmp_path, lambda number, place: None)
    one.save(1, [1])
    one.save(2, [2])
    (tmp_path / "checkpoints" / "checkpoint-2" / COMPLETE).unlink()
    again = FeedbackProgress(tmp_path, lambda number, place: None)
    assert again.rows(1) == [1]
    assert again.rows(2) is None
    assert not (tmp_path / "checkpoints" / "checkpoint-2").exists()


def test_the_store_keeps_whole_parts_of_a_stopped_stage(tmp_path: Path) -> None:
    store = StageStore(tmp_path)
    with store.attempt("f") as folder:
        FeedbackProgress(folder, lambda number, place: None).save(1, ["kept"])
        (folder / "details.json").write_text("{}")
        store.give_up("f")
        assert FeedbackProgress(folder, lambda number, place: None).rows(1) == ["kept"]
        assert not (folder / "details.json").exists()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": "☃ \ud800"}, {"text": "two\nlines"}])
    assert (tmp_path / "a.jsonl").read_text().count("\n") == 2
    shutil.rmtree(tmp_path)
    with pytest.raises(OSError):
        write_lines(tmp_path / "b", ["text"])
    assert not tmp_path.exists()
