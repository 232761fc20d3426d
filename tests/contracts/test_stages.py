"""What every stage must be: a block that is checked without torch, explains its keys, and comes back as it was written."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.core.config import Block
from pipelines.core.errors import RecipeError
from pipelines.core.load import loads
from pipelines.core.recipe import Recipe, Stage, schema
from pipelines.core.registry import STAGES

RECIPE = """\
name: every-stage
model: {{checkpoint: some/model}}
stages:
  - {{stage: pretrain, id: text, objective: causal_lm, datasets: [{{path: builtin/python-docs}}]}}
  - {{stage: supervised, id: pairs, from: model, task: multi30k/en-de}}
  - {{stage: supervised, id: before, from: model, task: glue/mrpc, tuner: lora}}
  - {stage}
"""


def examples_of(name: str) -> tuple[str, ...]:
    """The stage at its shortest, and with keys of its own."""
    examples: tuple[str, ...] = vars(STAGES.load(name)).get("recipe_examples", ())
    return examples or (f"{{stage: {name}}}",)


every_example = pytest.mark.parametrize("example", [each for name in STAGES for each in examples_of(name)])


def recipe_with(example: str) -> Recipe:
    return loads(RECIPE.format(stage=example))


@every_example
def test_it_comes_back_as_it_was_written(example: str) -> None:
    recipe = recipe_with(example)
    stage = recipe.stages[-1]
    again = loads(recipe.to_yaml())
    assert again.stages[-1] == stage
    assert again == recipe
    assert again.to_yaml() == recipe.to_yaml()
    rebuilt = type(stage).model_validate(_as_yaml(stage.plain()) | {"stage": stage.stage})
    assert rebuilt == stage


def _as_yaml(value: Any) -> Any:
    """Lists as the YAML reader gives them."""
    if isinstance(value, dict):
        return {key: _as_yaml(entry) for key, entry in value.items()}
    return tuple(_as_yaml(entry) for entry in value) if isinstance(value, list) else value


@every_example
def test_what_does_not_change_the_result_is_not_part_of_its_identity(example: str) -> None:
    stage = recipe_with(example).stages[-1]
    identity = stage.identity()
    assert not {"id", "from", "seed"} & identity.keys()
    renamed = stage.model_copy(update={"id": "another"})
    assert renamed.identity() == identity


@pytest.mark.parametrize("name", STAGES)
def test_every_key_is_explained(name: str) -> None:
    stage = STAGES.load(name)
    assert issubclass(stage, Stage)
    assert issubclass(stage, Block)
    assert stage.__doc__
    assert {*stage.model_fields} - {*stage.descriptions()} <= {"stage"}
    assert stage.model_fields["stage"].default == name


@pytest.fixture(scope="module")
def choices() -> list[dict[str, Any]]:
    """Every stage of the whole schema."""
    found: list[dict[str, Any]] = schema()["properties"]["stages"]["items"]["anyOf"]
    return found


@pytest.mark.parametrize("name", STAGES)
def test_it_stands_in_the_schema_with_its_keys(name: str, choices: list[dict[str, Any]]) -> None:
    (found,) = [choice for choice in choices if choice.get("properties", {}).get("stage") == {"const": name}]
    assert set(found["properties"]) == set(STAGES.load(name).keys())
    assert "stage" in found["required"]
    assert found["additionalProperties"] is False
    for key, described in found["properties"].items():
        assert key == "stage" or described["description"]


@pytest.mark.parametrize("name", STAGES)
def test_an_unknown_key_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match="unknown key 'nonsense'"):
        recipe_with(examples_of(name)[0][:-1] + ", nonsense: 1}")
