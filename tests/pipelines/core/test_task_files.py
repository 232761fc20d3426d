"""A task in a file of its own is the inline task that it describes, wherever a recipe names one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.core import task_files
from pipelines.core.config import key_path
from pipelines.core.errors import RecipeError
from pipelines.core.load import checked, load, read, read_text
from pipelines.tasks.benchmarks import read_file

TASK = """\
kind: classification
columns: [text]
label: label
train: rows.jsonl
validation: rows.jsonl
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    rows = [{"text": f"sentence {n}", "label": "yes" if n % 2 else "no"} for n in range(20)]
    (tmp_path / "tasks" / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tasks" / "mine.yaml").write_text(TASK)
    return tmp_path


def recipe(folder: Path, *stages: str, model: str = "architecture: {preset: bert-tiny}") -> Path:
    path = folder / "recipe.yaml"
    path.write_text("\n".join([f"name: t\nmodel: {{{model}}}\nstages:", *(f"  - {each}" for each in stages)]))
    return path


def test_it_is_the_inline_task_with_paths_that_stand_alone(folder: Path):
    made = load(recipe(folder, "{stage: supervised, task: ./tasks/mine.yaml}"))
    task = made.stages[0].task
    assert (task.kind, task.columns, task.train) == ("classification", ("text",), str(folder / "tasks" / "rows.jsonl"))
    assert len(made.stages[0].resolved("x").rows("train")) == 20
    assert "mine.yaml" not in made.to_yaml()


def test_overrides_reach_into_it_and_may_name_it(folder: Path):
    path = recipe(folder, "{stage: supervised, task: tasks/mine.yaml}")
    assert load(path, ["stages.supervised.task.label=text2"]).stages[0].task.label == "text2"
    named = recipe(folder, "{stage: supervised, task: glue/sst2}")
    assert load(named, ["stages.supervised.task=tasks/mine.yaml"]).stages[0].task.kind == "classification"


def test_a_stage_that_an_override_leaves_out_moves_the_others(folder: Path):
    (folder / "tasks" / "mine.yaml").write_text(TASK.replace("label: label", "label: [label]"))
    path = recipe(folder, "{stage: supervised, id: a, task: glue/sst2}", "{stage: supervised, task: tasks/mine.yaml}")
    with pytest.raises(RecipeError) as caught:
        load(path, ["stages.a=null"])
    assert [(each.file, each.line, each.key) for each in caught.value.mistakes] == [
        (str(folder / "tasks" / "mine.yaml"), 3, "label")
    ]


def test_several_tasks_of_one_stage(folder: Path):
    stage = "{stage: multi_task, tasks: [{task: glue/rte}, {task: ./tasks/mine.yaml}]}"
    tasks = load(recipe(folder, stage)).stages[0].tasks
    assert [each.id for each in tasks] == ["rte", "mine"]
    assert tasks[1].task.kind == "classification"


def test_a_benchmark_is_scored_by_the_stage_that_learnt_the_same_file(folder: Path):
    made = load(
        recipe(
            folder,
            "{stage: supervised, id: learn, task: ./tasks/mine.yaml}",
            "{stage: evaluate, benchmarks: [./tasks/mine.yaml]}",
        )
    )
    stage: Any = made.stages[1]
    ((choice,), issues) = stage.choices(made)
    assert not issues
    assert (choice.name, choice.model, choice.open_task().name) == ("mine", "learn", "mine")
    assert stage.modules(made) == {"pipelines.tasks.classification"}
    assert {"mine:validation"} <= set(stage.content(made))


def test_a_benchmark_that_nothing_was_trained_on_is_asked_of_the_checkpoint(folder: Path):
    (folder / "checkpoint").mkdir()
    made = load(
        recipe(folder, "{stage: evaluate, benchmarks: [./tasks/mine.yaml]}", model="checkpoint: ./checkpoint"),
    )
    assert [(each.name, each.model) for each in made.stages[0].choices(made)[0]] == [("mine", "model")]
    scratch = recipe(folder, "{stage: evaluate, benchmarks: [./tasks/mine.yaml]}")
    with pytest.raises(RecipeError, match="no earlier stage trained 'mine'"):
        load(scratch)


def test_it_is_asked_in_words(folder: Path):
    (folder / "checkpoint").mkdir()
    stage = "{stage: evaluate, few_shot: {shots: [0]}, benchmarks: [./tasks/mine.yaml]}"
    made = load(recipe(folder, stage, model="checkpoint: ./checkpoint"))
    assert set(made.stages[0].few_shot_scores(made)) == {"mine/0-shot"}


def test_a_study_tries_it_as_a_value(folder: Path):
    path = recipe(folder, "{stage: supervised, id: learn, task: glue/sst2}", "{stage: evaluate, benchmarks: [learn]}")
    path.write_text(path.read_text() + "\nmatrix: {stages.learn.task: [./tasks/mine.yaml, glue/sst2]}\n")
    made = checked(read(path))
    assert made.matrix["stages.learn.task"][0]["kind"] == "classification"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"'./tasks/mine.yaml' does not exist; looked for .*/tasks/mine.yaml"),
        ("name: t\nstages: []\n", "holds no task but a recipe; it must hold the keys of one"),
        ("./tasks/mine.yaml\n", 'holds no task but "./tasks/mine.yaml"; it must hold the keys of one'),
        (TASK + "task: ./tasks/mine.yaml\n", r"mine.yaml:6  task: unknown key 'task'"),
        (TASK + "benchmark: {metrics: [f1]}\n", r"mine.yaml:6  benchmark: unknown key 'benchmark'"),
        (TASK.replace("columns: [text]", "columns: []"), r"mine.yaml:2  columns: has 0 entries"),
        (TASK.replace("rows.jsonl", "no.jsonl", 1), r"mine.yaml:4  train: '.*/tasks/no.jsonl' does not exist"),
        ("kind: [", r"mine.yaml:\d+  is not valid YAML"),
    ],
)
def test_what_is_wrong_is_said_once_with_the_file_and_its_line(folder: Path, content: str | None, message: str):
    place = folder / "tasks" / "mine.yaml"
    place.unlink()
    if content is not None:
        place.write_text(content)
    with pytest.raises(RecipeError, match=message) as caught:
        load(recipe(folder, "{stage: supervised, task: ./tasks/mine.yaml}"))
    assert len(caught.value.mistakes) == 1


def test_two_files_of_one_name_are_refused(folder: Path):
    (folder / "mine.yaml").write_text(TASK.replace("label: label", "label: class"))
    stage = "{stage: evaluate, benchmarks: [./mine.yaml, ./tasks/mine.yaml]}"
    with pytest.raises(RecipeError, match="would be called 'mine', as another task of this stage is"):
        load(recipe(folder, stage))


@pytest.mark.parametrize("named", ["./tasks/mine.yaml", "tasks/mine.yaml", "/etc/mine.yaml"])
@pytest.mark.parametrize("key", ["task: {}", "benchmarks: [{}]", "tasks: [{{task: {}}}]"])
def test_a_recipe_from_the_network_reads_no_file(folder: Path, named: str, key: str):
    named = str(folder / named[5:]) if named.startswith("/") else named
    text = recipe(folder, "{stage: supervised, " + key.format(named) + "}").read_text()
    with pytest.raises(
        RecipeError, match="files of the sender are not read here; submit the recipe with 'finery submit'"
    ):
        read_text(text, folder=folder, local=False)


def test_what_is_sent_along_makes_the_text_whole(folder: Path):
    path = recipe(
        folder,
        "{stage: supervised, id: learn, task: ./tasks/mine.yaml}",
        "{stage: evaluate, benchmarks: [learn, ./tasks/mine.yaml]}",
    )
    source = read(path)
    sent = [
        f"{key_path(place)}={json.dumps(value)}" for place, value in task_files.overrides(source.files, source.data)
    ]
    received = read_text(path.read_text(), overrides=sent, local=False)
    assert received.data == source.data


def test_the_command_line_reads_it_too(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    assert read_file("tasks/mine.yaml").task("mine").columns == ("text",)
    with pytest.raises(RecipeError, match="does not exist"):
        read_file("other.yaml")
    (folder / "tasks" / "mine.yaml").write_text(TASK.replace("label: label\n", ""))
    with pytest.raises(RecipeError, match=r"tasks/mine.yaml:1  label: is missing"):
        read_file("tasks/mine.yaml")
