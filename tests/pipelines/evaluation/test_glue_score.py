"""The GLUE score is the leaderboard's mean."""

from __future__ import annotations

import pytest

from pipelines.core.registry import TASKS
from pipelines.evaluation.official.glue import AVERAGED, glue_score, task_scores

BERT_LARGE = {
    "glue/cola": {"matthews_correlation": 0.605}, "glue/sst2": {"accuracy": 0.949}, "glue/mrpc": {"accuracy": 0.854, "f1": 0.893},
    "glue/stsb": {"pearson": 0.876, "spearmanr": 0.865}, "glue/qqp": {"accuracy": 0.893, "f1": 0.721},
    "glue/mnli": {"accuracy": 0.867, "accuracy_mm": 0.859}, "glue/qnli": {"accuracy": 0.927}, "glue/rte": {"accuracy": 0.701},
    "glue/wnli": {"accuracy": 0.651},
}  # fmt: skip
"""BERT-large's row of the leaderboard (Jacob Devlin, 2018), whose score there is 80.5."""


def test_it_is_the_number_on_the_leaderboard():
    score, stands_on = glue_score(BERT_LARGE | {"glue/ax": {"matthews_correlation": 0.396}, "squad": {"f1": 90.0}})
    assert round(score["score"], 1) == 80.5
    assert score["score_without_wnli"] == pytest.approx((60.5 + 94.9 + 87.35 + 87.05 + 80.7 + 86.3 + 92.7 + 70.1) / 8)
    assert stands_on["missing"] == []
    assert len(stands_on["tasks"]) == 9


def test_a_missing_task_leaves_no_score_but_its_name():
    score, stands_on = glue_score({name: each for name, each in BERT_LARGE.items() if name != "glue/rte"})
    assert score == {}
    assert stands_on["missing"] == ["glue/rte"]


def test_without_wnli_the_other_score_stands():
    score, stands_on = glue_score({name: each for name, each in BERT_LARGE.items() if name != "glue/wnli"})
    assert list(score) == ["score_without_wnli"]
    assert stands_on["missing"] == ["glue/wnli"]


def test_one_task_is_no_glue():
    assert glue_score({"glue/rte": {"accuracy": 0.5}, "race/middle": {"accuracy": 0.3}}) == ({}, {})


def test_half_a_task_does_not_count():
    assert "glue/mnli" not in task_scores(BERT_LARGE | {"glue/mnli": {"accuracy": 0.8}})


def test_every_task_averages_the_metrics_that_it_is_scored_by():
    for name, parts in AVERAGED.items():
        task = TASKS.load(name)
        assert list(parts) == [f"{metric}{suffix}" for suffix in task.evaluation_splits for metric in task.metrics]
