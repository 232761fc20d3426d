"""The recipe that an attempt runs names paths where the user's named what belongs to the project."""

from pathlib import Path

import pytest

from pipelines.core.errors import RecipeError
from pipelines.core.yaml_positions import read_yaml_text
from service.safety.network_recipes import materialise, needs
from tests.service.safety.test_network_recipes import recipe


def test_references_become_paths_and_the_models_name_a_folder():
    made = materialise(recipe("file:file-1", "'ft:gpt:x'"), files={"file-1": Path("/data/a.jsonl")}, checkpoints={})
    stages = read_yaml_text(made.recipe)[0]["stages"]
    assert stages[0]["task"]["train"] == "/data/a.jsonl"
    assert stages[1]["to"] == "published/ft:gpt:x"
    assert made.publications == {"published/ft:gpt:x": "ft:gpt:x"}


def test_overrides_are_part_of_the_text():
    made = materialise(
        recipe(), ["stages.supervised.max_length=64", "stages.publish.to=other"], files={}, checkpoints={}
    )
    stages = read_yaml_text(made.recipe)[0]["stages"]
    assert (stages[0]["max_length"], stages[1]["to"]) == (64, "published/other")


def test_a_matrix_publishes_each_cell_under_its_own_name():
    study = recipe() + "matrix: {stages.publish.to: [one, two]}\n"
    made = materialise(study, files={}, checkpoints={})
    assert read_yaml_text(made.recipe)[0]["matrix"]["stages.publish.to"] == ("published/one", "published/two")
    assert set(made.publications.values()) == {"my-model", "one", "two"}


def test_what_is_gone_by_now_is_told_with_its_line():
    with pytest.raises(RecipeError, match=r"recipe\.yaml:7 .*'file:file-1' is gone"):
        materialise(recipe("file:file-1"), files={}, checkpoints={})


def test_needs_lists_everything_once():
    text = (
        recipe("file:file-1").replace("architecture: {preset: gpt-tiny}", "checkpoint: 'model:ft:a:b'")
        + "matrix: {model.checkpoint: ['job:x', 'job:x']}\n"
    )
    found = needs(text, ["stages.supervised.task.validation=file:file-2"])
    assert (found.files, found.jobs, found.models, found.publishes) == (
        ("file-1", "file-2"),
        ("x",),
        ("ft:a:b",),
        ("my-model",),
    )


@pytest.mark.parametrize("name", ["../x", "/srv/x", "a/b"])
def test_a_name_that_leaves_its_folder_is_refused_here_too(name):
    with pytest.raises(RecipeError):
        materialise(recipe(name=name), files={}, checkpoints={})
