"""A run's page, a study's table, a publication, its card and the command line say the same about one run."""

import json

import pytest

from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.core.results import scores_of_model
from pipelines.publishing.card import card
from pipelines.publishing.destinations.destination import destination_of
from pipelines.reports import run_page
from pipelines.reports.results import results_of, run_results
from service.cli.summary import collect, compare

RECIPE = """\
name: one
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, id: mrpc, task: glue/mrpc}
  - {stage: evaluate}
  - {stage: publish, to: registry/one}
"""
METRICS = {"accuracy": 0.7304, "f1": 0.821, "kl": 0.5, "majority_accuracy": 0.69, "tokens": 12}
"""Scores; a baseline's figure and a count among them, which are none."""
SCORES = {"accuracy": 0.7304, "f1": 0.821, "kl": 0.5}
INTERVALS = {"accuracy": (0.69, 0.77)}
BASELINES = {"majority": {"accuracy": 0.65, "f1": 0.79}, "naive_bayes": {"accuracy": 0.7}}


@pytest.fixture
def run(tmp_path):
    details = {
        "model": "mrpc",
        "examples": {"validation": 408},
        "splits": {"": "validation"},
        "intervals": {name: list(ends) for name, ends in INTERVALS.items()},
        "baselines": BASELINES,
    }
    for place, name, content in (
        ("01-mrpc", "metrics.json", {"train_runtime": 4.5, "trainable_parameters": 1000}),
        ("02-evaluate", "metrics.json", {"glue/mrpc": METRICS}),
        ("02-evaluate", "details.json", {"glue/mrpc": details}),
        ("03-publish", "publication.json", {"location": "/registry/one"}),
    ):
        (tmp_path / "stages" / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / "stages" / place / name).write_text(json.dumps(content))
    return tmp_path, loads(RECIPE)


def test_all_read_the_same_scores_intervals_and_baselines(run):
    folder, recipe = run
    stages = {stage.id: folder / f"stages/{at:02d}-{stage.id}" for at, stage in enumerate(recipe.stages, start=1)}
    [of_the_study] = results_of(folder, recipe)
    [of_the_page] = run_results(folder, recipe).scores
    of_the_publication = scores_of_model("mrpc", ["evaluate"], stages)["glue/mrpc"]
    [of_the_command] = collect(folder, [(stage.id, stage.stage) for stage in recipe.stages]).scores
    for scores in (of_the_study, of_the_page, of_the_publication, of_the_command):
        assert (scores.benchmark, scores.model, scores.stage, scores.main) == (
            "glue/mrpc",
            "mrpc",
            "evaluate",
            "accuracy",
        )
        assert (scores.metrics, scores.intervals, scores.baselines) == (SCORES, INTERVALS, BASELINES)


def test_all_name_the_same_baseline_to_beat_and_find_it_inside_the_interval(run):
    folder, recipe = run
    summary = collect(folder, [(stage.id, stage.stage) for stage in recipe.stages])
    [scores] = run_results(folder, recipe).scores
    assert run_page.sentence(scores) == (
        "Ahead of naive bayes, but within the 95 % interval: accuracy 0.730 against 0.700."
    )
    assert compare(summary, "glue/mrpc") == (
        "On glue/mrpc, 'mrpc' is ahead of naive Bayes, but within its 95 % interval: accuracy 0.730 against 0.700."
    )


def test_the_card_and_the_readme_show_these_numbers(run, tmp_path):
    folder, recipe = run
    (tmp_path / "config.json").write_text("{}")
    scores = scores_of_model("mrpc", ["evaluate"], {"evaluate": folder / "stages/02-evaluate"})
    head = Head("sequence_classification", ("no", "yes"))
    text = card(recipe, recipe.stages[-1], head, tmp_path, destination_of("x"), scores, {}, None, {})
    assert "| glue/mrpc | accuracy | 0.7304 | 0.6900 … 0.7700 | 0.6500 | 0.7000 |" in text
    assert "| glue/mrpc | mrpc | accuracy | 0.730 | 0.690 – 0.770 | 0.650 | 0.700 |" in run_page.readme(
        run_results(folder, recipe)
    )
    assert "tokens" not in text
    assert "majority_accuracy" not in text


def test_all_say_where_it_was_published(run):
    folder, recipe = run
    assert run_results(folder, recipe).published == ["/registry/one"]
    assert collect(folder, [(stage.id, stage.stage) for stage in recipe.stages]).published == ("/registry/one",)
