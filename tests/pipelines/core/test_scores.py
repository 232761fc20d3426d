"""How figures are read: counts and guessers are no scores, and fewer bits are better."""

from __future__ import annotations

from importlib import import_module

import pytest

from pipelines.core import scores
from pipelines.core.registry import BASELINES, METRICS, OBJECTIVES
from pipelines.core.scores import percent_metrics, score_names
from pipelines.metrics.base import Metric


class Errors(Metric):
    """A metric whose perfect score is its smallest."""

    values = "texts"
    scores = ("f1_errors", "misses")
    best, worst = 0.0, 50.0


def test_counts_and_guessers_are_no_scores():
    assert [
        name
        for name in ("bits_per_byte", "tokens", "bigram_bits_per_byte", "accuracy_mm", "bytes")
        if scores.is_score(name)
    ] == [
        "bits_per_byte",
        "accuracy_mm",
    ]
    assert all(scores.is_score(name) for name in METRICS)
    assert "majority" in BASELINES


def test_bits_are_better_when_fewer_and_metrics_when_more():
    assert scores.better("bits_per_byte", 1.0, 2.0)
    assert not scores.better("bits_per_byte", 2.0, 2.0)
    assert scores.better("accuracy", 0.9, 0.8)
    assert not set(scores.SMALLER_IS_BETTER) & set(METRICS)


@pytest.mark.parametrize(
    ("metric", "smaller"),
    [
        ("perplexity", True),
        ("bits_per_byte", True),
        ("bigram_hidden_bits_per_byte", True),
        ("kl", True),
        ("kl_k3_against", True),
        ("eval_loss", True),
        ("accuracy", False),
        ("majority_accuracy", False),
        ("bleu", False),
        ("win_rate_against", False),
        ("loss_of_nothing", False),
    ],
)
def test_one_table_says_where_small_is_good(metric, smaller):
    assert scores.smaller_is_better(metric) is smaller


def test_a_metric_says_itself_that_small_is_good(monkeypatch):
    asked = ("errors", "misses", "misses_mm", "f1_errors", "majority_misses", "misses_against", "f1", "f1_mm")
    assert not any(scores.smaller_is_better(name) for name in asked)
    monkeypatch.setitem(METRICS._table, "errors", f"{__name__}:Errors")
    assert [scores.smaller_is_better(name) for name in asked] == [False, *[True] * 5, False, False]
    assert scores.better("misses", 1.0, 2.0)
    assert scores.bounds("f1_errors") == (0.0, 50.0)
    assert scores.bounds("f1") == (0.0, 1.0)


def test_what_is_promised_for_an_objective_is_what_is_computed():
    tallies = import_module("pipelines.metrics.perplexity")
    sums = dict.fromkeys(
        ("bits", "bytes", "tokens", "right", "pairs", "pairs_right", "found", "missed", "false_alarms"), 1.0
    )
    for name in OBJECTIVES:
        objective = OBJECTIVES.load(name)()
        detects = "replaced" in objective.label_names
        likely = "bits_per_byte" in objective.text_scores
        compute = tallies.detection if detects else tallies.likelihood if likely else tallies.hidden
        pairs = objective.layout == "sentences"
        assert objective.text_scores == tuple(compute(sums if pairs else sums | {"pairs": 0.0}))


def test_a_score_lies_between_its_bounds():
    assert scores.bounds("accuracy_mm") == (0.0, 1.0)
    assert scores.bounds("matthews_correlation") == (-1.0, 1.0)
    assert scores.bounds("f1", ["accuracy", "f1"]) == (0.0, 1.0)
    assert scores.bounds("f1", ["exact_match", "f1"]) == (0.0, 100.0)
    assert scores.bounds("perplexity")[0] == 0.0
    for metric in scores.score_names(METRICS):
        assert scores.bounds(metric) != scores.bounds("of no name that is known"), metric


def test_metrics_give_their_scores_under_their_own_names():
    assert score_names(("accuracy", "squad")) == ("accuracy", "exact_match", "f1")
    assert score_names(("seqeval",))[0] == "f1"


def test_percentages_are_told_from_fractions():
    assert percent_metrics(("bleu", "accuracy", "squad")) == ("bleu", "squad")
    assert scores.is_percent("f1", ["exact_match", "f1"])
    assert not scores.is_percent("f1", ["f1", "accuracy"])
    assert scores.is_percent("exact_match_a", ["f1_a"])
