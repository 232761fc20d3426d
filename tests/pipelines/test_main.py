"""`python -m pipelines`: verbs, exit codes, and one sentence on standard error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.__main__ import main
from pipelines.core.errors import Busy, CommandError, DataError, FineryError, Stopped
from pipelines.runs import run
from pipelines.runs.workspace import StageStore

RECIPE = """\
name: short
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: pretrain, datasets: [{path: builtin/python-docs}]}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return "recipe.yaml"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "usage: python -m pipelines {run|"),
        (["fly"], "usage: python -m pipelines {run|"),
        (["run"], "run needs a recipe"),
        (["plan"], "plan needs a recipe"),
        (["plan", "--json"], "plan needs a recipe"),
        (["resume"], "is no run folder"),
        (["resume", "nowhere"], "'nowhere' is no run folder (it has no recipe.yaml)"),
        (["gc", "--older-than"], "--older-than needs a number"),
        (["gc", "--older-than", "soon"], "--older-than needs a number"),
        (["plan", "recipe.yaml", "--flops-per-second", "fast"], "--flops-per-second needs a number"),
        (["attention"], "attention needs one JSON object; people use: finery attention"),
        (["generate", "[]"], "generate needs one JSON object"),
        (["generate", "{}", "x"], "generate needs one JSON object"),
        (["run", "nosuch.yaml"], "nosuch.yaml  there is no such file"),
        (["run", "recipe.yaml", "sead=1"], "did you mean"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_exits_2_with_a_sentence(
    words: list[str], expected: str, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert expected.lower() in said.err.lower()
    assert said.out == ""
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("no rows", stage="mrpc"), 1),
        (Busy("in use"), 1),
        (Stopped("stopped by SIGTERM"), 75),
        (CommandError("no such verb"), 2),
    ],
)
def test_an_error_of_a_run_becomes_its_exit_code(
    error: FineryError, code: int, recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(run, "run", fail)
    assert main(["run", recipe]) == code
    assert capsys.readouterr().err == f"finery: {error}\n"


@pytest.mark.parametrize(
    ("words", "hosts"), [(["launch.hosts=4"], 4), (["launch.hosts=4", "--hosts", "2"], 2), ([], 1)], ids=str
)
def test_a_plan_for_gpus_takes_the_hosts_of_the_recipe(
    words: list[str], hosts: int, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", recipe, "--gpus", "8xH100", "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"]["hosts"] == hosts


@pytest.mark.parametrize(
    ("variables", "who"),
    [
        ({"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "LOCAL_RANK": "1"}, "torchrun (TORCHELASTIC_RUN_ID, LOCAL_RANK"),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, "accelerate launch (ACCELERATE_MIXED_PRECISION is set)"),
        ({"RANK": "0"}, "another launcher (RANK is set)"),
    ],
)
@pytest.mark.parametrize("words", [["run", "recipe.yaml"], ["resume", "runs/short"], ["study", "recipe.yaml"]])
def test_a_process_of_another_launcher_is_refused(
    words: list[str],
    variables: dict[str, str],
    who: str,
    recipe: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"finery: this process was started by {who}")
    assert "launch.num_processes in the recipe" in said
    assert said.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "launcher",
    [
        ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
        ["accelerate.commands.launch", "--cpu", "--num_processes", "2"],
    ],
    ids=["torchrun", "accelerate"],
)
def test_a_real_launcher_around_a_run_is_refused_in_a_sentence(
    launcher: list[str], recipe: str, repository: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "-m", "pipelines", "run", recipe, "launch.num_processes=auto"],
        env={**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    assert "finery: this process was started by" in done.stderr
    assert not Path("runs").exists()


def test_run_goes_into_the_folder_of_its_name(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(run, "run", lambda recipe, folder: seen.append((recipe.seed, folder)))
    assert main(["run", recipe, "name=other", "seed=5"]) == 0
    assert seen == [(5, Path("runs/other"))]


def test_resume_goes_on_in_the_folder_where_the_run_was_started(
    tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, start = tmp_path / "there" / "runs" / "short", tmp_path / "there"
    place.mkdir(parents=True)
    (place / "recipe.yaml").write_text(RECIPE)
    (place / "manifest.json").write_text(json.dumps({"working_folder": str(start)}))
    seen = []
    monkeypatch.setattr(run, "run", lambda recipe, folder: seen.append((Path.cwd(), folder)))
    assert main(["resume", "there/runs/short"]) == 0
    assert seen == [(start, place)]


def test_gc_prints_one_json_object(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StageStore(home).attempt("abc") as folder:
        (folder / "x").write_text("12345")
        StageStore(home).finish("abc", {"inputs": []})
    assert main(["gc", "--dry-run"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["folders"] == [str(home / "stages" / "abc")]
    assert (home / "stages" / "abc").is_dir()
    assert main(["gc", "--older-than", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] == 1
    assert main(["gc"]) == 0
    assert not (home / "stages" / "abc").exists()


def test_an_answer_is_one_json_object_and_noise_goes_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipelines.commands import generate

    def answer(request: dict[str, int]) -> dict[str, int]:
        print("noise")
        return {"twice": 2 * request["x"]}

    monkeypatch.setattr(generate, "answer", answer)
    assert main(["generate", '{"x": 4}']) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ('{"twice": 8}\n', "noise\n")


@pytest.mark.parametrize(
    ("error", "code", "reason", "expected"),
    [
        (CommandError("no such model"), 2, "bad_recipe", "no such model"),
        (DataError("no text"), 1, "data_error", "no text"),
        (MemoryError(), 1, "out_of_memory", "take a shorter text or a smaller model"),
        (ZeroDivisionError("odd"), 1, "internal", "not foreseen: ZeroDivisionError: odd"),
    ],
)
def test_a_question_without_an_answer_is_told_twice(
    error: Exception,
    code: int,
    reason: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from pipelines.commands import attention

    def fail(request: object) -> None:
        raise error

    monkeypatch.setattr(attention, "answer", fail)
    assert main(["attention", "{}"]) == code
    told = capsys.readouterr()
    assert json.loads(told.out)["error"]["reason"] == reason
    assert expected in json.loads(told.out)["error"]["message"]
    assert expected in told.err
