"""A signal outside the training loop ends the run at once with 75, leaves nothing half-written, and what was done is kept."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pipelines.core.events import read_events
from tests.end_to_end import forked

RECIPE = """\
name: stopped
model:
  architecture: {preset: bert-tiny, hidden_size: 32, intermediate_size: 64, max_position_embeddings: 64}
tokenizer: {train: wordpiece, vocab_size: 300}
stages:
  - stage: supervised
    task: builtin/python-docs
    max_length: 16
    max_train_samples: 16
    arguments: {max_steps: 2, global_batch_size: 8, learning_rate: 1e-3}
  - {stage: evaluate, max_eval_samples: 20}
"""
PUBLISH = "  - {stage: publish, to: registry/stopped}\n"


@pytest.mark.parametrize(
    ("place", "delay", "stage", "done", "number"),
    [
        ("tokenizer", 0.0, "supervised", [], signal.SIGINT),
        ("prediction", 0.0, "evaluate", ["tokenizer", "supervised"], signal.SIGTERM),
        ("proof of the publication", 1.0, "publish", ["tokenizer", "supervised", "evaluate"], signal.SIGTERM),
        ("stage being finished", 0.0, "supervised", [], signal.SIGTERM),
    ],
)
def test_a_signal_outside_training(
    place: str, delay: float, stage: str, done: list[str], number: int, tmp_path: Path
) -> None:
    work, home, said = tmp_path / "work", tmp_path / "home", tmp_path / "said"
    work.mkdir()
    (work / "recipe.yaml").write_text(RECIPE + (PUBLISH if stage == "publish" else ""))
    code = forked.fork(
        forked.command_signalled, ["run", "recipe.yaml"], str(work), str(said), str(home), place, delay, int(number)
    )
    assert code == 75, said.read_text()
    run = work / "runs" / "stopped"
    events = list(read_events(run / "events.jsonl"))
    assert (events[-1]["event"], events[-1]["reason"], events[-1]["stage"]) == ("stopped", "stopped", stage)
    assert signal.Signals(number).name in events[-1]["message"]
    assert said.read_text().count("\n") == 1, said.read_text()
    assert [event["stage"] for event in events if event["event"] == "stage_finished"] == done
    assert [path for path in home.glob("stages/*.partial") if path.is_dir()] == []
    assert not [
        path
        for root in (work, home)
        for path in root.rglob("*")
        if path.name.endswith((".tmp", ".incoming", ".written"))
    ]
    assert not [link for link in (run / "stages").iterdir() if not link.exists()]
    assert not (work / "registry" / "stopped").exists()
    assert not children_of(work, home), "something goes on after the command has ended"
    if stage != "publish":
        code = forked.fork(
            forked.command, ["resume", "runs/stopped"], str(work), str(said), None, {"FINERY_HOME": str(home)}
        )
        assert code == 0, said.read_text()
        resumed = list(read_events(run / "events.jsonl", after=events[-1]["id"]))
        reused = {event["stage"]: event["reused"] for event in resumed if event["event"] == "stage_finished"}
        complete = [*done, "tokenizer"] if place == "stage being finished" else done
        assert reused == {each: each in complete for each in ("tokenizer", "supervised", "evaluate")}
        assert resumed[-1]["event"] == "finished"


def children_of(*roots: Path) -> list[str]:
    """Command lines of living processes that name one of the folders."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if int(path.parent.name) != os.getpid() and any(str(root) in line for root in roots):
            found.append(line)
    return found
