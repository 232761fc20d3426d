"""Only a checkpoint whose marker was written last counts."""

from __future__ import annotations

from pathlib import Path

from pipelines.trainers.checkpoints import mark_complete, newest_complete, remove_unfinished, state_of


def test_the_newest_marked_checkpoint_is_taken_whatever_lies_beside_it(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_text("weights")
    assert newest_complete(tmp_path) is None
    for step in (9, 10):
        mark_complete(tmp_path / f"checkpoint-{step}", {"step": step, "loss": 0.1 + 0.2})
    found = newest_complete(tmp_path)
    assert found == tmp_path / "checkpoint-10"
    assert state_of(found) == {"step": 10, "loss": 0.1 + 0.2}


def test_half_written_checkpoints_are_removed_and_whole_ones_kept(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / f"checkpoint-{step}").mkdir()
    mark_complete(tmp_path / "checkpoint-1", {})
    (tmp_path / "checkpoint-2" / "complete.json.tmp").write_text("{")
    assert remove_unfinished(tmp_path) == [tmp_path / "checkpoint-2"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
