"""What a run leaves, as its one reader gives it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pipelines.core.results import scores_in, scores_of_model, strongest


def evaluation(folder: Path, **scored: tuple[str, float]) -> Path:
    folder.mkdir()
    names = {name.replace("_", "/"): value for name, value in scored.items()}
    (folder / "metrics.json").write_text(json.dumps({name: {"f1": score} for name, (_, score) in names.items()}))
    (folder / "details.json").write_text(json.dumps({name: {"model": model} for name, (model, _) in names.items()}))
    return folder


def test_only_the_models_own_scores_count_and_the_latest_of_each(tmp_path):
    folders = {
        "one": evaluation(tmp_path / "one", glue_mrpc=("a", 0.1), glue_cola=("b", 0.2), glue_rte=("a", 0.3)),
        "two": evaluation(tmp_path / "two", glue_mrpc=("b", 0.4), glue_rte=("a", 0.5)),
    }
    found = scores_of_model("a", ["one", "two"], folders)
    assert {name: each.metrics for name, each in found.items()} == {"glue/mrpc": {"f1": 0.1}, "glue/rte": {"f1": 0.5}}
    assert {name: each.folder for name, each in found.items()} == {
        "glue/mrpc": folders["one"],
        "glue/rte": folders["two"],
    }
    assert scores_of_model("c", ["one", "two"], folders) == {}


def scored(metrics, **details):
    [only] = scores_in({"glue/mrpc": metrics}, {"glue/mrpc": details}, "evaluate")
    return only


@pytest.mark.parametrize(
    ("bar", "interval", "standing"),
    [
        (0.8, [0.7, 0.9], "behind"),
        (0.75, [0.7, 0.9], "within the interval"),
        (0.7, [0.7, 0.9], "within the interval"),
        (0.65, [0.7, 0.9], "better"),
        (0.65, None, "ahead"),
    ],
)
def test_a_score_stands_to_a_baseline_by_its_interval(bar, interval, standing):
    scores = scored({"accuracy": 0.8}, intervals={"accuracy": interval} if interval else {})
    assert scores.standing(bar) == standing


def test_the_strongest_baseline_is_the_smallest_where_small_is_good_and_nan_is_none():
    baselines = {"unigram": {"kl": 3.0}, "bigram": {"kl": 2.0}, "broken": {"kl": math.nan}, "other": {"f1": 0.0}}
    assert strongest("kl", baselines) == ("bigram", 2.0)
    assert strongest("f1", {"first": {"f1": 0.5}, "second": {"f1": 0.5}}) == ("first", 0.5)
    assert strongest("f1", {"broken": {"f1": math.nan}}) is None
    assert scored({"kl": 1.0}, baselines=baselines).strongest_baseline() == ("bigram", 2.0)


def test_counts_and_baselines_are_no_scores_and_what_is_undefined_is_left_out_on_demand():
    scores = scored({"accuracy": "nan", "f1": 0.5, "tokens": 9, "majority_f1": 0.4, "note": "text", "right": True})
    assert list(scores.metrics) == ["accuracy", "f1"]
    assert math.isnan(scores.metrics["accuracy"])
    assert scores.defined().metrics == {"f1": 0.5}
    assert scored({"f1": math.nan}).defined() is None
    assert scores_in({"text": {"tokens": 9}}, {}, "evaluate") == []


def test_intervals_that_are_none_are_left_out():
    intervals = {"f1": [0.1, 0.2], "accuracy": [0.1], "kl": [0, "nan"], "reward": None}
    assert scored({"f1": 0.15}, intervals=intervals).intervals == {"f1": (0.1, 0.2)}
