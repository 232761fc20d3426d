"""A study by its command, its runs as processes of their own: killed, stopped, continued, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines.core.events import read_events

pytestmark = pytest.mark.long
RECIPE = """\
name: stopped
model: {architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}}
tokenizer: {train: wordpiece, vocab_size: 300}
stages:
  - {stage: supervised, id: docs, task: builtin/python-docs, max_length: 16, max_train_samples: 400, arguments: {num_train_epochs: 40, global_batch_size: 8, save_strategy: steps, save_steps: 20}}
  - {stage: evaluate, max_eval_samples: 20}
matrix:
  stages.docs.arguments.learning_rate: [1e-3, 2e-3]
"""


COMMANDS: list[subprocess.Popen[str]] = []


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "study.yaml").write_text(RECIPE)
    yield tmp_path
    for command in COMMANDS:  # a test that failed half-way leaves nothing running
        if command.poll() is None:
            command.terminate()
            command.communicate(timeout=120)
    COMMANDS.clear()


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "service.cli", "study", "study.yaml", "--json", *options]
    environment = os.environ | {
        "FINERY_HOME": str(folder / "home"),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    command = subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    COMMANDS.append(command)
    return command


def events(folder: Path, cell: str) -> list[dict[str, Any]]:
    return list(read_events(folder / "runs" / "stopped" / "cells" / cell / "events.jsonl"))


def until(condition: Any, seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.1)


def of_study(folder: Path) -> list[psutil.Process]:
    """Processes that work in the study's folder: the study, what forks its runs, and its runs."""
    found = []
    for process in psutil.process_iter(["cwd", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and process.info["cwd"] == str(folder):
            found.append(process)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_study_saves_its_runs_and_continues_them(folder: Path, number: int) -> None:
    command = start(folder, "--parallel", "2")
    until(lambda: all(any(each["event"] == "checkpoint" for each in events(folder, cell)) for cell in ("01", "02")))
    command.send_signal(number)
    out, err = command.communicate(timeout=600)
    assert command.returncode == 75, err
    assert json.loads(out)["status"] == "stopped"
    until(lambda: not of_study(folder), 20)
    for cell in ("01", "02"):
        assert events(folder, cell)[-1]["event"] == "stopped"
    out, err = start(folder, "--parallel", "2").communicate(timeout=600)
    told = json.loads(out)
    assert (told["status"], told["counts"]["done"]) == ("done", 2), err
    for cell in ("01", "02"):
        assert any(each.get("what") == "resumed" for each in events(folder, cell))


def test_a_killed_study_leaves_no_process_and_continues(folder: Path) -> None:
    command = start(folder)
    until(lambda: any(each["event"] == "checkpoint" for each in events(folder, "01")))
    [study] = [process for process in psutil.Process(command.pid).children() if "pipelines" in process.cmdline()]
    study.kill()
    command.communicate(timeout=600)
    assert command.returncode == 1
    until(lambda: not of_study(folder), 60)
    out, err = start(folder).communicate(timeout=600)
    assert json.loads(out)["counts"]["done"] == 2, err
    assert any(each.get("what") == "resumed" for each in events(folder, "01"))
