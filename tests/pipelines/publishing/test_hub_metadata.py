"""Both forms of scores that the Hub reads, read back by huggingface_hub's own parsers."""

from __future__ import annotations

import math

import yaml
from huggingface_hub import EvalResultEntry, ModelCardData, parse_eval_result_entries
from huggingface_hub.repocard_data import model_index_to_eval_results

from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.core.results import BenchmarkScores
from pipelines.publishing.hub_metadata import evaluation_results, metadata

RECIPE = loads(
    "name: tiny\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n"
    "  - {stage: supervised, id: mrpc, task: glue/mrpc}\n  - {stage: evaluate}\n"
)
SCORES = {
    each.benchmark: each
    for each in (
        BenchmarkScores(
            "glue/mrpc",
            "evaluate",
            "mrpc",
            {"accuracy": 0.75, "f1": 0.5},
            {"accuracy": (0.625, 0.875)},
            details={"examples": {"validation": 408}, "splits": {"": "validation"}},
        ),
        BenchmarkScores("squad", "evaluate", "mrpc", {"exact_match": 81.5, "f1": math.nan}),
        BenchmarkScores("glue/cola/5-shot", "evaluate", "mrpc", {"matthews_correlation": 0.25}),
        BenchmarkScores("mine", "evaluate", "mrpc", {"accuracy": 0.5}),
        BenchmarkScores("completions", "evaluate", "mrpc", {"reward": 0.5}, details={"policy": {}}),
    )
}


def test_the_newer_form_has_the_main_score_on_each_benchmark_of_the_hub() -> None:
    text = evaluation_results(SCORES, "2026-01-02T03:04:05Z")
    assert parse_eval_result_entries(yaml.safe_load(text)) == [
        EvalResultEntry(
            "nyu-mll/glue",
            "mrpc",
            0.75,
            date="2026-01-02T03:04:05Z",
            notes="accuracy on validation; 408 examples; 95 % interval 0.625 to 0.875 over the examples; f1 0.5",
        ),
        EvalResultEntry("rajpurkar/squad", "default", 81.5, date="2026-01-02T03:04:05Z", notes="exact_match"),
        EvalResultEntry(
            "nyu-mll/glue", "cola", 0.25, date="2026-01-02T03:04:05Z", notes="matthews_correlation; 5-shot"
        ),
    ]
    assert evaluation_results({"mine": SCORES["mine"]}, None) == ""


def test_the_model_index_has_every_finite_score() -> None:
    block = yaml.safe_load(metadata(RECIPE, Head("sequence_classification"), SCORES, None, False, "mit").to_yaml())
    name, results = model_index_to_eval_results(block["model-index"])
    assert name == "tiny"
    assert {(each.dataset_type, each.dataset_config, each.metric_name, each.metric_value) for each in results} == {
        ("nyu-mll/glue", "mrpc", "accuracy", 0.75),
        ("nyu-mll/glue", "mrpc", "f1", 0.5),
        ("rajpurkar/squad", None, "exact_match", 81.5),
        ("nyu-mll/glue", "cola", "matthews_correlation", 0.25),
        ("mine", None, "accuracy", 0.5),
    }
    assert isinstance(ModelCardData(**block), ModelCardData)  # which refuses a `model-index` that is none


def test_data_sets_that_the_model_learnt_from_are_named() -> None:
    data = metadata(RECIPE, Head("sequence_classification"), {}, None, False, None, ["wikitext/x", "nyu-mll/glue"])
    assert data.datasets == ["nyu-mll/glue", "wikitext/x"]
