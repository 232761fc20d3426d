"""Every YAML that is shipped is valid: what users copy must run."""

import re
from pathlib import Path

import pytest

from pipelines.core.load import load, loads

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
