import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.core.load import load_study
from service.cli.__main__ import main
from service.cli.study import StudyBar, StudyLines, told, trials_of
from tests.words import words_of

STUDY = """\
name: fake
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, id: mrpc, task: glue/mrpc}
  - {stage: evaluate}
matrix:
  method: {full: {stages.mrpc.tuner: full}, lora: {stages.mrpc.tuner: lora}}
  stages.mrpc.seed: [1, 2]
study: {reference: full}
"""
OPEN = """
(RUN / "cells").mkdir(parents=True, exist_ok=True)
(RUN / "recipe.yaml").write_text(Path(os.environ["FAKE_RECIPE"]).read_text())
log = EventLog(RUN / "events.jsonl")
def row(name, mean, **more):
    figure = {"mean": mean, "sd": 0.01, "values": [mean, mean], "interval": [mean - 0.02, mean + 0.02], "difference": None}
    return {"name": name, "labels": {"method": name}, "benchmark": "glue/mrpc", "metric": "accuracy", "metrics": {"accuracy": figure}, "expected": 2,
            "counts": {"done": 2}, "costs": {"train_runtime": 12.0, "saved_bytes": 4000, "peak_memory_bytes": 5e8}, "trainable_share": 0.5,
            "reference": name == "full", "verdict": "reference" if name == "full" else "inside the noise", **more}
def finish(failed=0):
    cells = [{"cell": f"cells/0{n}", "labels": {}, "status": "failed" if n <= failed else "done", "message": "no such column" if n <= failed else ""} for n in (1, 2, 3, 4)]
    lora = row("lora", 0.79)
    lora["metrics"]["accuracy"]["difference"] = {"value": -0.01, "interval": [-0.03, 0.01], "clear": False}
    data = {"name": "fake", "seconds": 3.0, "reference": "full", "compared": "method", "search": [], "cells": cells, "rows": [row("full", 0.8), lora],
            "counts": {"done": 4 - failed, "failed": failed, "refused": 0, "stopped": 0, "queued": 0}}
    (RUN / "study.json").write_text(json.dumps(data))
"""
GOES_WELL = (
    OPEN
    + """
assert VERB == "study"
log.emit("started", name="fake")
log.emit("cell", cell="cells/01", status="running", labels={"method": "full", "seed": "1"})
log.emit("cell", cell="cells/01", status="done", labels={"method": "full", "seed": "1"}, seconds=12.0)
log.emit("cell", cell="cells/02", status="reused", labels={"method": "full", "seed": "2"})
log.emit("warning", message="learning_rate 0.01 is the largest that was tried")
finish()
(RUN / "asked").write_text(json.dumps(sys.argv[1:]))
"""
)
FAILS = (
    OPEN
    + """
log.emit("cell", cell="cells/01", status="failed", labels={"method": "full", "seed": "1"}, message="no such column")
finish(failed=1)
sys.exit(1)
"""
)
STOPS = (
    OPEN
    + """
stop = []
signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
signal.signal(signal.SIGINT, lambda number, frame: stop.append(number))
log.emit("started", name="fake")
for _ in range(2000):
    time.sleep(0.01)
    if stop:
        finish()
        sys.exit(75)
"""
)


@pytest.fixture
def recipe(recipe):
    recipe.write_text(STUDY)
    return recipe


def test_a_study_ends_with_its_table_and_where_everything_lies(recipe, pretend, capsys):
    pretend(GOES_WELL)
    assert main(["study", "recipe.yaml", "--parallel", "2", "stages.mrpc.max_length=64"]) == 0
    out, err = capsys.readouterr()
    assert "0.800 ± 0.010" in out
    assert "-0.010 (-0.030 to +0.010)  noise" in out
    assert "4 of 4 cells are done." in out
    assert "runs/fake/report.html" in out
    assert "1/4  done in 12 s  method full, seed 1" in err
    assert "2/4  reused  method full, seed 2" in err
    assert "warning: learning_rate 0.01" in err
    assert json.loads((recipe.parent / "runs/fake/asked").read_text()) == words_of(
        "study recipe.yaml --parallel 2 stages.mrpc.max_length=64"
    )


def test_json_is_one_object_with_cells_and_rows(recipe, pretend, capsys):
    pretend(GOES_WELL)
    assert main(["study", "recipe.yaml", "--json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["status"], told["study"], told["counts"]["done"], len(told["rows"])) == ("done", "runs/fake", 4, 2)
    assert err == ""


def test_a_failed_cell_is_told_and_how_to_continue(recipe, pretend, capsys):
    pretend(FAILS)
    assert main(["study", "recipe.yaml"]) == 1
    out, err = capsys.readouterr()
    assert "3 of 4 cells are done; 1 failed." in out
    assert "cells/01 failed: no such column" in out
    assert "1 of 4 cells failed; the first: No such column." in err
    assert "finery study recipe.yaml" in err


def test_mistakes_are_told_before_anything_starts(recipe, pretend, capsys):
    pretend("raise SystemExit('the child was started')")
    recipe.write_text(STUDY.replace("tuner: lora", "tuner: lorra"))
    assert main(["study", "recipe.yaml"]) == 2
    assert "matrix.method.lora.stages.mrpc.tuner.name: unknown tuner 'lorra'" in capsys.readouterr().err
    assert not (recipe.parent / "runs").exists()


def test_a_single_run_is_no_study_and_a_study_no_single_run(recipe, pretend, capsys):
    pretend("raise SystemExit('the child was started')")
    assert main(["run", "recipe.yaml"]) == 2
    assert "run it with: finery study recipe.yaml" in capsys.readouterr().err
    recipe.write_text(STUDY.partition("matrix:")[0])
    assert main(["study", "recipe.yaml"]) == 2
    assert "finery run recipe.yaml" in capsys.readouterr().err


def test_resume_continues_a_study_by_its_folder(recipe, pretend, capsys):
    pretend(GOES_WELL)
    assert main(["study", "recipe.yaml"]) == 0
    assert main(["resume", "runs/fake"]) == 0
    assert json.loads(Path("runs/fake/asked").read_text()) == ["study", "runs/fake"]


def test_validate_tells_the_cells(recipe, capsys):
    assert main(["validate", "recipe.yaml"]) == 0
    assert "recipe.yaml: fine (a study of 4 cells)" in capsys.readouterr().out
    assert main(["validate", "recipe.yaml", "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)["recipes"]
    assert [cell["labels"] for cell in told["cells"]][-1] == {"method": "lora", "seed": "2"}


def test_ctrl_c_stops_the_study_and_leaves_with_75(recipe, pretend):
    script = pretend(STOPS)
    program = f"import sys; from service.cli import child; child.PIPELINES = (sys.executable, {str(script)!r}); from service.cli.__main__ import main; sys.exit(main(['study', 'recipe.yaml']))"
    command = subprocess.Popen(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    events = recipe.parent / "runs/fake/events.jsonl"
    for _ in range(600):
        if events.is_file():
            break
        time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 75
    assert "The study stopped; what is done is kept." in err


def test_compare_refuses_what_is_no_run_and_what_is_a_study(recipe, pretend, capsys):
    pretend(GOES_WELL)
    main(["study", "recipe.yaml"])
    capsys.readouterr()
    assert main(["compare", "runs/fake", "runs/fake"]) == 2
    assert "is a study" in capsys.readouterr().err
    assert main(["compare", "nowhere", "runs/fake"]) == 2
    assert "holds no recipe.yaml" in capsys.readouterr().err


def test_compare_shows_each_difference(recipe, pretend, capsys):
    for name in ("a", "b"):
        Path(name).mkdir()
        Path(name, "recipe.yaml").write_text(STUDY.partition("matrix:")[0])
    pretend("""
figure = lambda value, difference: {"value": value, "interval": None, "difference": difference}
print(json.dumps({"notes": ["glue/rte was measured by a alone."], "tests": ["bootstrap", "mcnemar"], "correction": "holm", "comparisons": 2,
  "warnings": ["choose by something else"], "benchmarks": [{"benchmark": "glue/mrpc", "reference": "a", "metrics": ["accuracy"], "sentences": ["b is worse."],
  "models": [{"name": "a", "reference": True, "mcnemar": None, "metrics": {"accuracy": figure(0.8, None)}},
             {"name": "b", "reference": False, "mcnemar": {"only_here": 3, "only_reference": 19, "exact": 0.0009, "mid": 0.0005},
              "metrics": {"accuracy": figure(0.7, {"value": -0.1, "interval": [-0.2, -0.05], "clear": True,
                "p": {"bootstrap": 0.012, "mcnemar": 0.0009}, "corrected": {"bootstrap": 0.024, "mcnemar": 0.0018}})}}]}]}))
""")
    assert main(["compare", "a", "b"]) == 0
    out = capsys.readouterr().out
    assert "-0.100 (-0.200 to -0.050)" in out
    assert "b is worse." in out
    for sentence in (
        "p-values, accuracy, → Holm for 2",
        "0.012 → 0.024",
        "< 0.001 → 0.002",
        "3 : 19",
        "warning: choose by something else",
    ):
        assert sentence in out
    assert "glue/rte was measured by a alone." in out


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
