"""Scores agree exactly on the same kind of machine, within a stated range elsewhere."""

from __future__ import annotations

import math

import pytest

from pipelines.core.results import BenchmarkScores
from pipelines.publishing.agreement import compare, differences_from

STATED = BenchmarkScores(
    "glue/mrpc",
    "evaluate",
    "mrpc",
    {"accuracy": 0.8, "f1": 0.85},
    {"accuracy": (0.75, 0.85)},
    details={"examples": {"validation": 1000}},
)


@pytest.mark.parametrize(
    ("measured", "exact", "by_interval", "holds"),
    [
        (0.8, True, False, True),
        (0.801, True, False, False),
        (0.8049, False, False, True),  # half a point
        (0.8051, False, False, False),
        (0.8499, False, True, True),  # the interval
        (0.8501, False, True, False),
        (0.7501, False, True, True),
        (math.nan, False, True, False),
    ],
)
def test_a_score_holds_within_what_is_stated(measured, exact, by_interval, holds):
    first = compare(STATED, {"accuracy": measured, "f1": 0.85}, exact, by_interval)[0]
    assert (first.metric, first.holds) == ("accuracy", holds)


def test_a_score_without_an_interval_has_the_margin():
    assert not compare(STATED, {"accuracy": 0.8, "f1": 0.856}, exact=False, by_interval=True)[1].holds
    assert compare(STATED, {"accuracy": 0.8, "f1": 0.854}, exact=False, by_interval=True)[1].holds


def test_two_examples_of_few_may_be_answered_otherwise():
    few = BenchmarkScores("x", "evaluate", "x", {"accuracy": 0.5}, details={"examples": 20})
    assert compare(few, {"accuracy": 0.6}, exact=False)[0].holds
    assert not compare(few, {"accuracy": 0.65}, exact=False)[0].holds


@pytest.mark.parametrize(
    ("metric", "value", "inside", "outside"), [("exact_match", 70.0, 70.4, 70.6), ("perplexity", 20.0, 20.09, 20.2)]
)
def test_the_margin_is_of_the_scores_own_range(metric, value, inside, outside):
    beside = {"f1": 75.0} if metric == "exact_match" else {"bits_per_byte": 2.0}
    stated = BenchmarkScores("x", "evaluate", "x", {metric: value, **beside}, details={"examples": 10_000})
    assert compare(stated, {metric: inside, **beside}, exact=False)[0].holds
    assert not compare(stated, {metric: outside, **beside}, exact=False)[0].holds


def test_what_was_not_measured_again_does_not_hold_and_what_is_undefined_in_both_does():
    missing = compare(STATED, {"accuracy": 0.8}, exact=False)[1]
    assert (missing.holds, missing.measured) == (False, None)
    assert (
        missing.sentence()
        == "f1 of glue/mrpc is stated as 0.85, and measured again it is nothing, not within 0.845 to 0.855"
    )
    undefined = BenchmarkScores("x", "evaluate", "x", {"matthews_correlation": math.nan})
    assert compare(undefined, {"matthews_correlation": math.nan}, exact=True)[0].holds
    assert not compare(undefined, {"matthews_correlation": 0.1}, exact=False)[0].holds
    diverged = BenchmarkScores("x", "evaluate", "x", {"perplexity": math.nan})  # a manifest has neither
    assert compare(diverged, {"perplexity": math.inf}, exact=True)[0].holds


def test_the_kind_of_a_machine_is_its_processor_its_threads_its_gpus_and_the_versions():
    here = {"processor": "EPYC", "threads": 2, "gpus": [], "memory_bytes": 1}
    manifest = {"hardware": here | {"memory_bytes": 2}, "versions": {"torch": "2.13"}}
    assert differences_from(manifest, here, {"torch": "2.13"}) == []
    assert differences_from(manifest, here | {"threads": 1}, {"torch": "2.14"}) == [
        "the number of threads is 1, there it was 2",
        "torch is 2.14, there it was 2.13",
    ]
    assert differences_from(manifest, here | {"gpus": [{"name": "H200"}]}, {"torch": "2.13"}) == [
        "the GPUs are H200, there they were none"
    ]
