import pytest

from pipelines.recipe import loads
from pipelines.study_results import SEED, curve_of, results_of
from pipelines.study_statistics import resamples
from tests.pipelines.studies import EXAMPLES, finish, right

RECIPE = "name: a\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n  - {stage: supervised, id: mrpc, task: glue/mrpc}\n  - {stage: evaluate}\n"


@pytest.fixture
def made(tmp_path):
    def make(name, answered):
        recipe = loads(RECIPE)
        finish(tmp_path / name, recipe, answered, learnt=50)
        [result] = results_of(tmp_path / name, recipe)
        return result

    return make


def test_scores_costs_and_examples_are_read_from_the_run(made):
    result = made("a", right(0.75, 1))
    assert (result.benchmark, result.stage, result.model, result.main, result.examples) == ("glue/mrpc", "evaluate", "mrpc", "accuracy", EXAMPLES)
    assert result.metrics["accuracy"] == 0.75
    assert (result.costs["trainable_parameters"], result.costs["saved_bytes"]) == (50, 200)


def test_draws_are_the_metric_on_resampled_examples(made):
    answered = right(0.75, 1)
    result = made("a", answered)
    assert set(result.draws) == {"accuracy", "f1"}
    assert result.draws["accuracy"] == pytest.approx(answered[resamples(EXAMPLES, SEED)].mean(axis=1))


def test_scores_that_the_predictions_do_not_give_are_not_resampled(made):
    result = made("a", right(0.75, 1))
    result.metrics["accuracy"] = 0.5
    assert result.draws == {}


def test_the_same_examples_are_recognised(made):
    assert made("a", right(0.75, 1)).same_examples(made("b", right(0.5, 2)))


def test_the_curve_is_that_of_the_events(made, tmp_path):
    made("a", right(0.75, 1))
    assert curve_of(tmp_path / "a", "mrpc") == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert curve_of(tmp_path / "a", "other") == []
