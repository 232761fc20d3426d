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


def test_time_that_is_not_known_leaves_the_rest(study):
    whole = plan_study(study(RECIPE), 1e12)
    partly = plan_study(study(RECIPE.replace("arguments: {max_steps: 10}", "arguments: {num_train_epochs: 1}")), 1e12)
    pretraining = plan(study(RECIPE).cells[0].recipe, 1e12).stages[0].seconds
    assert (whole.known_seconds, whole.known_search_seconds) == (whole.seconds, 0)
    assert partly.seconds is None
    assert partly.known_seconds == partly.to_json()["known_seconds"] == pytest.approx(pretraining)
    assert "without the stages whose time is not known" in partly.lines()[-1]
    assert "without" not in whole.lines()[-1]


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


BUDGET = """\
study:
  reference: masks
  budget: {match: flops, stage: pretrain}
  search: {over: {stages.docs.arguments.learning_rate: [1e-4, 1e-3]}, per: [objective], seeds: 1}
"""


def test_matched_budgets_are_planned_as_the_study_would_train(study):
    text = RECIPE.replace(
        "  stages.docs.tuner: [full, lora]",
        "  objective:\n    masks: {}\n    replaced: {stages.pretrain.objective: replaced_token_detection}",
    )
    whole, unmatched = plan_study(study(text + BUDGET), 1e12), study(text)
    masks, replaced = whole.rows
    alone = plan(unmatched.cells[0].recipe, 1e12).stages[0].flops
    assert masks.budget.steps is None
    assert replaced.budget.steps < 40  # its generator costs
    assert whole.to_json()["rows"][1]["budget"]["max_steps"] == replaced.budget.steps
    assert f"{replaced.budget.steps} steps of 'pretrain' by its budget" in "\n".join(whole.lines())
    # a pretraining each, as trials train it too, and six trainings behind
    before = plan(unmatched.cells[3].recipe, 1e12).stages[0]
    docs = plan(unmatched.cells[0].recipe, 1e12).stages[1]
    steps = replaced.budget.steps
    assert steps / 40 * before.flops <= alone < (steps + 1) / 40 * before.flops
    cost = plan(unmatched.cells[0].recipe, 1e12).stages[0].seconds + before.seconds * steps / 40
    assert whole.seconds == pytest.approx(cost + 6 * docs.seconds)


def test_a_budget_by_time_is_left_to_the_run(study):
    text = RECIPE.replace(
        "  stages.docs.tuner: [full, lora]", "  method:\n    full: {}\n    lora: {stages.docs.tuner: lora}"
    )
    whole = plan_study(study(text + "study: {reference: full, budget: {match: time}}\n"), 1e12)
    assert "its steps are matched when a step has been timed" in "\n".join(whole.lines())
