import json

import numpy as np
import pytest

from pipelines.core.events import read_events
from pipelines.core.interfaces import Rows
from pipelines.core.load import loads
from pipelines.evaluation.outcomes import SEED
from pipelines.evaluation.policy_completions import PolicyPredictions
from pipelines.evaluation.resampling import resamples
from pipelines.reports.results import curves_of, learning_curve, results_of, write_curves
from pipelines.tasks.predictions import write_predictions
from tests.pipelines.studies.written_runs import EXAMPLES, finish, right

RECIPE = (
    "name: a\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n  - {stage: supervised, id: mrpc, task: "
    "glue/mrpc}\n  - {stage: evaluate}\n"
)


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
    assert (result.benchmark, result.stage, result.model, result.main, result.examples) == (
        "glue/mrpc",
        "evaluate",
        "mrpc",
        "accuracy",
        EXAMPLES,
    )
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
    assert learning_curve(read_events(tmp_path / "a/events.jsonl"), "mrpc") == [
        (1, 1.0),
        (2, 0.5),
        (3, pytest.approx(1 / 3)),
    ]
    assert learning_curve(read_events(tmp_path / "a/events.jsonl"), "other") == []


def test_a_stage_that_is_reused_shows_the_curves_that_it_kept(tmp_path):
    metrics = [{"loss": 1.5}, {"eval_accuracy": 0.5, "eval_runtime": 2.0}, {"loss": 0.5}, {"eval_accuracy": 0.75}]
    events = [
        {"event": "metric", "stage": "mrpc", "step": step, "metrics": each}
        for step, each in enumerate(metrics, start=1)
    ]
    write_curves(tmp_path, events, "mrpc")
    kept = ([(1, 1.5), (3, 0.5)], {"accuracy": [(2, 0.5), (4, 0.75)]})
    assert curves_of([], "mrpc", tmp_path) == kept == curves_of(events, "mrpc", tmp_path / "absent")
    write_curves(tmp_path / "absent", [], "mrpc")
    assert not (tmp_path / "absent").exists()


def test_scores_of_completions_are_resampled_over_the_prompts(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "a b"}')
    text = (
        "name: a\nmodel: {checkpoint: some/model}\nstages:\n  - {stage: supervised, id: sft, task: {kind: "
        "causal, train: rows.jsonl}}\n"
        "  - {stage: evaluate, against: model, prompts: {path: rows.jsonl}, reward: length}\n"
    )
    recipe = loads(text, folder=tmp_path)
    rewards, wins = np.arange(20.0), np.array([1.0, 0.5] * 10)
    found = []
    for name, more in (("one", 0.0), ("two", 1.0)):
        place = tmp_path / name / "stages" / "02-evaluate"
        place.mkdir(parents=True)
        said = PolicyPredictions(
            "policy",
            "train",
            "",
            Rows(["a"] * 20, None, None, range(20)),
            np.array(["b"] * 20, dtype=object),
            ["c"] * 20,
            {"reward": rewards + more, "win_rate": wins},
        )
        write_predictions(place / "predictions.parquet", [said])
        (place / "metrics.json").write_text(
            json.dumps({"policy": {"reward": 9.5 + more, "win_rate": 0.75, "distinct_2": 0.5}})
        )
        (place / "details.json").write_text(
            json.dumps({"policy": {"model": "sft", "examples": {"train": 20}, "splits": {"": "train"}, "policy": {}}})
        )
        found += results_of(tmp_path / name, recipe)
    one, two = found
    assert (one.main, one.model, one.examples, one.parts) == ("reward", "sft", 20, {})
    assert set(one.draws) == {"reward", "win_rate"}
    assert one.draws["reward"] == pytest.approx(rewards[resamples(20, SEED)].mean(axis=1))
    assert two.draws["reward"] - one.draws["reward"] == pytest.approx(1.0)  # the same prompts are taken from both
    assert one.same_examples(two)


def test_a_task_of_several_cost_what_all_of_them_did_and_weighs_what_it_needs(tmp_path):
    from pipelines.reports.results import _costs

    place = tmp_path / "01-together"
    (place / "tasks" / "rte" / "model").mkdir(parents=True)
    (place / "metrics.json").write_text(json.dumps({"trainable_parameters": 50, "train_runtime": 3.0}))
    for name, size in (("model-00001-of-00002.safetensors", 90), ("model-00002-of-00002.safetensors", 10)):
        (place / "tasks" / "rte" / "model" / name).write_bytes(b"\0" * size)
    assert _costs({"together": place}, "together/rte") == {
        "trainable_parameters": 50,
        "train_runtime": 3.0,
        "saved_bytes": 100,
    }
    assert _costs({"together": place}, "model") == {}
