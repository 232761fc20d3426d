"""A rank finds the complete stages of its run, and leaves an error where the driver looks for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pipelines.runs.run import complete_stages


def test_complete_stages_are_found_by_id_and_attempts_are_not(tmp_path: Path) -> None:
    store, run = tmp_path / "store", tmp_path / "run"
    for name in ("aaa", "bbb.partial", "ccc"):
        (store / name).mkdir(parents=True)
    (run / "stages").mkdir(parents=True)
    (run / "stages" / "01-pretrain").symlink_to(store / "aaa")
    (run / "stages" / "02-fine-tune-2").symlink_to(store / "ccc")
    (run / "stages" / "03-evaluate").symlink_to(store / "bbb.partial")
    (run / "stages" / "04-gone").symlink_to(store / "ddd")
    (run / "tokenizer").symlink_to(store / "ccc")
    assert complete_stages(run) == {"pretrain": store / "aaa", "fine-tune-2": store / "ccc", "tokenizer": store / "ccc"}


def test_a_rank_that_cannot_work_exits_1_and_leaves_the_reason(tmp_path: Path) -> None:
    (tmp_path / "attempt.partial").mkdir()
    words = ["stage", str(tmp_path), "mine", str(tmp_path / "attempt.partial"), "2"]  # two are wanted, this is alone
    done = subprocess.run([sys.executable, "-m", "pipelines", *words], capture_output=True, text=True)
    assert done.returncode == 1
    left = json.loads((tmp_path / "attempt.partial" / "failure.json").read_text())
    assert left == {"type": "StageError", "message": "2 processes were asked for, but 1 joined"}
