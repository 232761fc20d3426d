import pytest

from pipelines.core.load import load_study
from pipelines.runs.planning.plan import plan
from pipelines.studies.plan import plan_study

RECIPE = """\
name: s
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: pretrain, objective: masked_lm, datasets: [{path: builtin/python-docs}], arguments: {max_steps: 40}}
  - {stage: supervised, id: docs, task: builtin/python-docs, max_length: 32, arguments: {max_steps: 10}}
matrix:
  stages.docs.tuner: [full, lora]
  stages.docs.seed: [1, 2, 3]
"""


@pytest.fixture
def study(tmp_path):
    def written(text, *overrides):
        path = tmp_path / "study.yaml"
        path.write_text(text)
        return load_study(path, overrides)

    return written


def test_a_shared_stage_is_counted_once(study):
    found = study(RECIPE)
    costs = {
        name: plan(next(cell for cell in found.cells if cell.labels["tuner"] == name).recipe, 1e12).stages
        for name in ("full", "lora")
    }
    expected = costs["full"][0].seconds + 3 * costs["full"][1].seconds + 3 * costs["lora"][1].seconds
    whole = plan_study(found, 1e12)
    assert whole.seconds == pytest.approx(expected)
    assert [(row.labels, row.cells) for row in whole.rows] == [({"tuner": "full"}, 3), ({"tuner": "lora"}, 3)]
    assert whole.rows[1].trained.trainable_parameters == costs["lora"][1].trainable_parameters


def test_a_top_level_seed_repeats_everything(study):
    found = study(RECIPE.replace("stages.docs.seed", "seed"))
    stages = plan(found.cells[0].recipe, 1e12).stages
    lora = plan(found.cells[-1].recipe, 1e12).stages
    assert plan_study(found, 1e12).seconds == pytest.approx(
        3 * stages[0].seconds + 3 * stages[1].seconds + 3 * lora[1].seconds
    )


def test_trials_and_refused_cells_are_told(study):
    text = (
        RECIPE.replace("[full, lora]", "[full, lora]\n  stages.docs.max_length: [32, 9999]")
        + "study: {search: {over: {stages.docs.arguments.learning_rate: [1, 2, 3, 4]}, halving: "
        "{stages.docs.arguments.num_train_epochs: [1, 2]}}}\n"
    )
    whole = plan_study(study(text), 1e12)
    assert whole.trials == 2 * (4 + 2) * 3  # seeds
    assert len(whole.refused) == 6
    assert whole.search_seconds > 0
    assert any("refused: cells/04" in line for line in whole.lines())
    assert whole.to_json()["trials"] == 36
