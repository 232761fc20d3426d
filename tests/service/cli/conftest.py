"""A stand-in for `python -m pipelines`: a script that behaves as a test needs it, without loading a model."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service.cli import child

PREAMBLE = """
import json, os, signal, sys, time
from pathlib import Path
from pipelines.core.events import EventLog

VERB, TARGET = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
RUN = Path(os.environ.get("FAKE_RUN", "runs/fake"))

def open_run():
    (RUN / "stages").mkdir(parents=True, exist_ok=True)
    (RUN / "recipe.yaml").write_text(Path(os.environ["FAKE_RECIPE"]).read_text())
    return EventLog(RUN / "events.jsonl")
"""

RECIPE = """\
name: fake
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, id: mrpc, task: glue/mrpc}
  - {stage: evaluate}
  - {stage: publish, to: registry/fake}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A valid recipe in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    monkeypatch.setenv("FAKE_RECIPE", str(path))
    monkeypatch.setenv("PYTHONPATH", str(Path(child.__file__).parents[2]))
    return path


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """`pretend(script)` makes the script the child process of every verb."""

    def install(script: str) -> Path:
        path = tmp_path / "fake_pipelines.py"
        path.write_text(PREAMBLE + script)
        monkeypatch.setattr(child, "PIPELINES", (sys.executable, str(path)))
        return path

    return install
