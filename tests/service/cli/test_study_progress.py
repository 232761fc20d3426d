import io

from pipelines.core.load import load_study
from service.cli.study import StudyBar, StudyLines, told, trials_of

CELL = {"event": "cell", "cell": "cells/01", "labels": {"method": "lora", "seed": "2"}}


def test_a_line_tells_how_a_run_ended():
    assert told(CELL | {"status": "done", "seconds": 61.0}) == "done in 1:01  method lora, seed 2"
    assert (
        told(CELL | {"status": "failed", "seconds": 3.0, "message": "no such column"})
        == "failed  method lora, seed 2: no such column"
    )
    assert told(CELL | {"status": "reused"}) == "reused  method lora, seed 2"


def test_lines_count_what_ended_and_say_nothing_of_what_runs():
    out = io.StringIO()
    lines = StudyLines(out, 3)
    lines.apply(CELL | {"status": "running"})
    lines.apply(CELL | {"status": "done", "seconds": 1.0})
    lines.apply({"event": "metric"})
    assert out.getvalue() == "1/3  done in 1.0 s  method lora, seed 2\n"


def test_a_terminal_shows_what_runs_below_the_bar():
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    display = StudyBar(console, 3)
    display.apply(CELL | {"status": "running"})
    with console.capture() as captured:
        console.print(display._render())
    assert "method lora, seed 2" in captured.get()
    assert "0/3 runs" in captured.get()
    display.apply(CELL | {"status": "done", "seconds": 1.0})
    assert display.running == {}
    assert display.ended == 1


def test_trials_of_every_rung_are_counted(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("""\
name: s
model: {architecture: {preset: bert-tiny}}
stages: [{stage: supervised, id: a, task: glue/mrpc}]
matrix: {stages.a.tuner: [full, lora]}
study:
  search:
    over: {stages.a.arguments.learning_rate: [1e-4, 3e-4, 1e-3, 3e-3]}
    halving: {stages.a.arguments.max_steps: [10, 20, 40]}
""")
    assert trials_of(load_study(path)) == 2 * (4 + 2 + 1)
    assert trials_of(load_study(path, ["study=null"])) == 0
