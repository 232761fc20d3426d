"""What every reward must do: what is in the table is tested, a new entry at once."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.core.config import Block
from pipelines.core.errors import RecipeError
from pipelines.core.interfaces import Head, World
from pipelines.core.load import loads
from pipelines.core.recipe import Recipe, schema
from pipelines.core.registry import REWARDS
from pipelines.rewards.reward import RewardBlock
from tests import tiny

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = """\
name: every-reward
model: {{checkpoint: some/model}}
stages:
  - {{stage: supervised, id: judge, task: glue/rte}}
  - {{stage: reward, id: scores, from: model, task: {{kind: preference, train: {rows}}}}}
  - {{stage: evaluate, from: model, prompts: {{path: {rows}, text: prompt}}, reward: {reward}}}
"""
PROMPTS = ["the film", "a", "a book was", "dog"]
COMPLETIONS = [" is good", " cat reads and the dog runs", "", " in the dull book it saw"]

every_reward = pytest.mark.parametrize(
    "example", [each for name in REWARDS for each in REWARDS.load(name).recipe_examples or (f"{{name: {name}}}",)]
)


@pytest.fixture
def recipe_with(tmp_path: Path) -> Any:
    """A recipe whose last stage has that reward."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "chosen": " b", "rejected": " c"}')

    def made(reward: str) -> Recipe:
        return loads(RECIPE.format(reward=reward, rows="rows.jsonl"), folder=tmp_path)

    return made


@pytest.fixture
def context(tmp_path: Path) -> Any:
    """Opens tiny models by the head that is asked for."""
    models = {
        "reward": tiny.build("finery", Head("reward"), initializer_range=0.5),
        "sequence_classification": tiny.build("bert", tiny.TWO),
    }
    return SimpleNamespace(
        world=World(),
        open_model=lambda head, **named: models[head.kind],
        open_tokenizer=lambda stage_id=None, checkpoint=None: tiny.tokenizer(),
        stage_folders={"scores": tmp_path, "judge": tmp_path},
        seed=0,
        cache=tmp_path,
    )


@every_reward
def test_it_comes_back_as_it_was_written(recipe_with: Any, example: str) -> None:
    recipe = recipe_with(example)
    again = loads(recipe.to_yaml())
    assert again.stages[-1].reward == recipe.stages[-1].reward
    assert again.to_yaml() == recipe.to_yaml()


@every_reward
def test_a_stage_reads_what_its_reward_reads(recipe_with: Any, example: str) -> None:
    recipe = recipe_with(example)
    stage: Any = recipe.stages[-1]
    assert set(stage.reward.stages) <= set(stage.reads(recipe))
    assert ("scores" in stage.reward.stages) == ("from: scores" in example)
    assert isinstance(stage.reward, RewardBlock)


@every_reward
def test_each_pair_gets_a_finite_number_of_its_own(recipe_with: Any, context: Any, example: str) -> None:
    scorer = recipe_with(example).stages[-1].reward.open(context)
    found = scorer(PROMPTS, COMPLETIONS)
    assert [type(score) for score in found] == [float] * len(PROMPTS)
    assert all(math.isfinite(score) for score in found)
    for order in ([3, 1, 0, 2], [2], [0, 0, 1]):  # what stands beside a pair changes it by rounding at most
        again = scorer([PROMPTS[at] for at in order], [COMPLETIONS[at] for at in order])
        assert again == pytest.approx([found[at] for at in order], abs=1e-5)
    assert scorer([], []) == []


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (
            "{from: scors}",
            "stages.evaluate.reward.from: 'scors' is no stage of this recipe. Did you mean 'scores'? Allowed: scores",
        ),
        (
            "{from: judge}",
            "'judge' is a supervised stage, which leaves no reward model. Allowed: scores; a classifier is "
            "read by name: classifier",
        ),
        (
            "{name: classifier, from: scores, label: good}",
            "'scores' is a reward stage, which leaves no classifier. Allowed: judge",
        ),
        ("{from: evaluate}", "'evaluate' is this stage itself"),
        ("{name: keywords, words: [a]}", "unknown reward 'keywords'. Did you mean 'keyword'?"),
        ("{words: [a]}", "'name' is missing; available: classifier, grader"),
        (
            "{name: weighted, rewards: [{reward: {from: nothing}}]}",
            "stages.evaluate.reward.rewards[0].reward.from: 'nothing' is no stage",
        ),
        (
            "{name: judge, judge: {name: reward, reward: {from: nothing}}}",
            "stages.evaluate.reward.judge.reward.from: 'nothing' is no stage",
        ),
        ("{from: scores, normalise: true}", "unknown key 'normalise'. Did you mean 'normalize'?"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_opened(recipe_with: Any, reward: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        recipe_with(reward)
    assert message in str(error.value)


@pytest.mark.parametrize("name", list(REWARDS))
def test_every_key_is_explained_and_frozen(name: str) -> None:
    block = REWARDS.load(name)
    assert issubclass(block, Block)
    assert block.__doc__
    assert block.model_config["frozen"]
    assert {*block.model_fields} - {*block.descriptions()} <= {"name"}


def test_a_reward_inside_a_reward_ends_the_schema() -> None:
    def depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + max((depth(each) for each in inner), default=0)

    described = schema()
    assert depth(described) < 60
    assert "keyword" in str(described)
