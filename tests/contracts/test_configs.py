"""Every YAML that is shipped is valid: what users copy must run."""

import json
import re
from pathlib import Path

import jsonschema
import pytest

from pipelines.core.load import load, loads
from pipelines.core.recipe import schema
from pipelines.core.registry import STAGES
from pipelines.core.yaml_positions import read_yaml_text

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FOLDERS = ("recipes", "smoke", "architectures", "tasks")


def files(folder):
    return sorted((CONFIGS / folder).rglob("*.yaml"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_is_missed(folder):
    assert files(folder)
    assert [path for path in (CONFIGS / folder).rglob("*") if path.is_file() and path.suffix != ".yaml"] == []


STUDIES = [path for path in files("recipes") if re.search(r"^study:", path.read_text(encoding="utf-8"), re.MULTILINE)]
"""Recipes of hundreds of cells each; those of smoke/ have few."""


@pytest.mark.parametrize(
    "path", [*files("recipes"), *files("smoke")], ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_recipe_is_valid(path):
    recipe = load(path)
    if path not in STUDIES:
        # read as what it resolves to, it is the same recipe
        assert loads(recipe.to_yaml(), folder=path.parent) == recipe


@pytest.fixture(scope="module")
def described():
    return jsonschema.Draft202012Validator(schema())


def as_written(text):
    data, _ = read_yaml_text(text, "recipe.yaml")
    return json.loads(json.dumps(data))


def test_editors_find_nothing_wrong_with_a_recipe_that_is_shipped(described):
    for path in [*files("recipes"), *files("smoke")]:
        assert described.is_valid(as_written(path.read_text(encoding="utf-8"))), path


@pytest.mark.parametrize("stage", STAGES)
def test_editors_find_nothing_wrong_with_an_example_of_a_stage(described, stage):
    examples = STAGES.load(stage).recipe_examples
    assert examples
    for example in examples:
        text = f"name: x\nmodel: {{architecture: {{preset: bert-tiny}}}}\nstages:\n  - {example}\n"
        assert described.is_valid(as_written(text)), example


SHORT = [
    ("supervised, task: glue/mrpc, tuner: {name: full, gradual_unfreezing: true, slanted_triangular: false}", True),
    ("supervised, task: glue/mrpc, tuner: {name: full, gradual_unfreezing: sometimes}", False),
    ("multi_task, tasks: [{task: glue/rte}, {task: glue/mrpc}], sampling: uniform", True),
    ("multi_task, tasks: [{task: glue/rte}, {task: glue/mrpc}], sampling: sometimes", False),
    ("supervised, task: {kind: classification, columns: [a], label: b, train: a.csv, labels: [0, 1]}", True),
    ("supervised, task: {kind: classification, columns: [a], label: b, train: a.csv, labels: 2}", False),
]


@pytest.mark.parametrize(("stage", "fits"), SHORT)
def test_what_is_written_in_short_is_described_too(described, stage, fits):
    text = f"name: x\nmodel: {{architecture: {{preset: bert-tiny}}}}\nstages:\n  - {{stage: {stage}}}\n"
    assert described.is_valid(as_written(text)) is fits


@pytest.mark.long
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.name)
def test_a_study_resolves_to_the_same_recipe(path):
    recipe = load(path)
    assert loads(recipe.to_yaml(), folder=path.parent) == recipe


def test_no_two_recipes_write_into_one_run_folder():
    texts = [path.read_text(encoding="utf-8") for path in [*files("recipes"), *files("smoke")]]
    names = [re.search(r"^name: (\S+)", text, re.MULTILINE)[1] for text in texts]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    "path", [*files("recipes"), *files("smoke")], ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_recipe_says_what_it_is_for(path):
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("path", files("architectures"), ids=lambda path: path.name)
def test_every_preset_is_an_architecture(path):
    text = (
        f"name: x\nmodel: {{architecture: {{preset: {path.stem}}}}}\nstages: [{{stage: supervised, task: glue/mrpc}}]\n"
    )
    assert loads(text).model.architecture == {"preset": path.stem}


def test_a_preset_that_does_not_exist_is_refused():
    from pipelines.core.errors import RecipeError

    with pytest.raises(RecipeError, match="no preset"):
        loads(
            "name: x\nmodel: {architecture: {preset: bert-gigantic}}\nstages: [{stage: supervised, task: glue/mrpc}]\n"
        )
