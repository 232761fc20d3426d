"""The page of a run: everything that stands behind its scores, as text that nothing in the data can break."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipelines.core.events import EventLog
from pipelines.core.load import loads
from pipelines.core.results import BenchmarkScores, scores_in
from pipelines.reports import run_page
from pipelines.reports.results import RunResults, ppo_samples, ppo_signals, run_results
from pipelines.reports.run_page import ppo_plots, running_mean, write_run_report
from tests.pipelines.studies.test_page import Balanced

RECIPE = """\
name: one <b> run
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, id: mrpc, task: glue/mrpc}
  - {stage: evaluate}
""".replace("one <b> run", "one-run")
DETAILS = {
    "model": "mrpc", "examples": {"validation": 408}, "splits": {"": "validation"}, "intervals": {"accuracy": [0.6, 0.8]},
    "baselines": {"majority": {"accuracy": 0.65, "f1": 0.79}},
    "slices": {"validation": [{"by": "length", "name": "1 – 9 words", "examples": 200, "scores": {"accuracy": 0.6}, "intervals": {"accuracy": [0.5, 0.7]}},
                              {"by": "length", "name": "10 – 40 words", "examples": 208, "scores": {"accuracy": 0.8}, "intervals": {}}]},
    "classes": {"validation": {"names": ["no", "<yes>"], "counts": [[50, 79], [30, 249]], "each": [
        {"name": "no", "examples": 129, "said": 80, "precision": 0.625, "recall": 0.388, "f1": 0.478},
        {"name": "<yes>", "examples": 279, "said": 328, "precision": None, "recall": 0.892, "f1": 0.82}]}},
    "calibration": {"validation": {"temperature": 1.0, "ece": 0.123, "confidence": 0.83, "accuracy": 0.73, "bins": [{"low": 0.8, "high": 0.867, "examples": 408, "confidence": 0.83, "accuracy": 0.73}],
                                   "scaled": {"temperature": 1.7, "ece": 0.02}}},
    "mistakes": {"validation": {"wrong": 109, "kept": 2, "by": "confidence in the wrong answer"}},
    "overlap": {"validation": {"run": 13, "examples": 408, "exact": 1, "partly": 40, "seen": 40, "share": 0.098, "run_share": 0.1, "short": 3, "unknown": "my-bert",
                               "sources": [{"stage": "mrpc", "texts": 3668, "words": 144899}], "clean": {"examples": 368, "scores": {"accuracy": 0.7}},
                               "found": [{"index": 4, "text": "the old text", "stage": "mrpc", "exact": False, "words": "the old text again"}]}},
}  # fmt: skip
MISTAKE = {
    "benchmark": "glue/mrpc",
    "split": "validation",
    "index": 76,
    "text": "<script>alert(1)</script>",
    "text_pair": "two",
    "gold": "no",
    "said": "<yes>",
    "confidence": 0.75,
    "badness": 0.75,
    "by": "x",
}


@pytest.fixture
def folder(tmp_path):
    recipe = loads(RECIPE)
    for place, name, content in (
        (
            "01-mrpc",
            "metrics.json",
            {
                "train_steps": 30,
                "train_runtime": 4.5,
                "trainable_parameters": 1000,
                "all_parameters": 4000,
                "peak_memory_bytes": 5e8,
            },
        ),
        ("02-evaluate", "metrics.json", {"glue/mrpc": {"accuracy": 0.73, "f1": 0.82}}),
        ("02-evaluate", "details.json", {"glue/mrpc": DETAILS}),
        ("02-evaluate", "mistakes.jsonl", MISTAKE),
    ):
        (tmp_path / "stages" / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / "stages" / place / name).write_text(json.dumps(content))
    manifest = {
        "started": "2026-11-21T10:00:00+00:00",
        "wall_time": 62.0,
        "stages": [{"id": "mrpc", "seconds": 60.0, "reused": False}],
        "hardware": {"processor": "CPU", "cores": 2, "gpus": []},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    events = EventLog(tmp_path / "events.jsonl", "mrpc")
    for step in range(1, 4):
        events.emit("metric", step=step, metrics={"loss": 1 / step, "eval_loss": 2 / step, "eval_f1": 0.1 * step})
    events.emit("warning", message="rows are cut")
    return tmp_path, recipe


def read(folder):
    text = (folder / "report.html").read_text()
    parser = Balanced()
    parser.VOID = parser.VOID | {"rect"}
    parser.feed(text)
    assert parser.open == []
    assert parser.addresses == []
    return text, " ".join(" ".join(parser.text).split())


def test_the_page_stands_alone_and_shows_what_stands_behind_the_scores(folder):
    write_run_report(*folder)
    text, words = read(folder[0])
    assert text.count("<svg") == 7  # scores, parts, calibration, confusions, loss, held-out loss, held-out scores
    for told in (
        "one-run",
        "2 stages, 62 s in all",
        "Ahead of majority, but within the 95 % interval: accuracy 0.730 against 0.650.",
        "0.600 – 0.800",
        "40 of 408 examples (9.8%) overlap: 1 as a whole, 40 in a run of 13 words. The 368 others score "
        "accuracy 0.700.",
        "3 are shorter than such a run",
        "What my-bert was trained on before is not known here.",
        "Expected calibration error 0.123",
        "so it is too sure",
        "With a temperature of 1.70",
        "By confidence in the wrong answer.",
        "right: no",
        "75.0% sure; row 76",
        "1 k of 4 k (25.0%)",
        "500 MB",
        "rows are cut",
    ):
        assert told in words
    assert text.index("<svg") < text.index("<table")
    assert "<script>" not in text
    assert "<script>alert(1)</script>" in words


def test_the_page_says_what_was_drawn_from_each_data_set(tmp_path):
    recipe = loads(
        "name: one\nmodel: {architecture: {preset: bert-tiny}}\nstages: [{stage: pretrain, datasets: [{path: builtin/python-docs}]}]\n"
    )
    (tmp_path / "stages" / "01-pretrain").mkdir(parents=True)
    drawn = {"<a>.jsonl": {"examples": 30, "tokens": 1234567, "share": 0.7, "epochs": 0.31}}
    (tmp_path / "stages" / "01-pretrain" / "metrics.json").write_text(json.dumps({"train_steps": 3, "datasets": drawn}))
    write_run_report(tmp_path, recipe)
    text, words = read(tmp_path)
    assert "Text that was drawn (pretrain)" in words
    assert [part for part in ("1,234,567", "70.0%", "0.31", "&lt;a&gt;.jsonl") if part not in text] == []


def test_the_readme_has_the_scores_and_the_warnings(folder):
    write_run_report(*folder)
    text = (folder[0] / "README.md").read_text()
    assert "| glue/mrpc | mrpc | accuracy | 0.730 | 0.600 – 0.800 | 0.650 |" in text
    assert "- warning: rows are cut" in text


def test_a_run_that_failed_before_it_measured_anything_has_a_page_too(tmp_path):
    EventLog(tmp_path / "events.jsonl", "mrpc").emit("failed", message="the disk is full", reason="disk_full")
    write_run_report(tmp_path, loads(RECIPE))
    _, words = read(tmp_path)
    assert "It did not finish: the disk is full" in words


def test_scores_of_held_out_rows_are_curves_by_name(folder):
    stage = run_results(*folder).stages[0]
    assert stage.held_out == {
        "loss": [(1, 2.0), (2, 1.0), (3, pytest.approx(2 / 3))],
        "f1": [(1, 0.1), (2, 0.2), (3, pytest.approx(0.3))],
    }
    assert stage.curve == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]


def test_completions_stand_side_by_side_and_stay_text(folder):
    place, recipe = folder
    sample = {
        "index": 3,
        "prompt": "<script>one</script>",
        "completion": "<b>two",
        "score": 0.5,
        "against": "three",
        "score_against": 0.0,
    }
    about = {"model": "ppo", "intervals": {"win_rate": [0.55, 0.7]}, "policy": {"against": "sft", "samples": [sample]}}
    metrics = {"policy": {"reward": 0.3, "reward_against": 0.2, "win_rate": 0.62}}
    for name, content in (("metrics.json", metrics), ("details.json", {"policy": about})):
        (place / "stages" / "02-evaluate" / name).write_text(json.dumps(content))
    write_run_report(place, recipe)
    (page, text), told = read(place), (place / "README.md").read_text()
    assert "<script>one" not in page
    assert "ppo (0.5): <b>two" in text
    assert "sft (0): three" in text
    assert "for 62.0% of the prompts" in told


METRICS = {"reward": 0.31, "reward_against": 0.2, "win_rate": 0.625, "kl": 4.25}
ABOUT = {
    "model": "ppo",
    "intervals": {"win_rate": [0.55, 0.7], "reward": [0.28, 0.34]},
    "policy": {
        "against": "sft",
        "samples": [
            {
                "index": 3,
                "prompt": "<b>",
                "completion": "x" * 700,
                "score": 0.5,
                "against": " bad",
                "score_against": 0.0,
            }
        ],
    },
}


def scored(metrics: dict[str, float], about: dict[str, Any], benchmark: str = "policy") -> BenchmarkScores:
    [only] = scores_in({benchmark: metrics}, {benchmark: about}, "evaluate")
    return only


def page_of(*scores: BenchmarkScores, judged: list[dict[str, Any]] | None = None) -> str:
    return run_page.page(RunResults("run", list(scores), {}, [], [], {}, "", [], judged=judged or []))


def test_the_sentence_says_who_wins_and_how_far_it_went():
    assert run_page.sentence(scored(METRICS, ABOUT)) == (
        "Its completions score higher than those of 'sft' for 62.5% of the prompts, ties counted half (95 %: "
        "55.0% – 70.0%); "
        "rewards 0.31 against 0.2, at a KL divergence of 4.25 nats a completion."
    )
    unsure = scored(METRICS, ABOUT | {"intervals": {"win_rate": [0.45, 0.7]}})
    assert "which may be chance" in run_page.sentence(unsure)


def test_without_another_model_there_is_no_sentence():
    alone = scored({"reward": 0.3}, {"model": "ppo", "policy": {"against": None, "samples": []}})
    assert run_page.sentence(alone) == ""
    assert "ppo: 0.3" in page_of(alone)
    other = scored({"accuracy": 0.3}, {}, "glue/rte")
    assert run_page.sentence(other) == ""
    assert "Completions" not in page_of(other)


def test_samples_are_shortened_and_both_models_are_drawn():
    page = page_of(scored(METRICS, ABOUT))
    assert f"ppo (0.5): {'x' * run_page.LONGEST_COMPLETION} …" in page
    assert "sft (0):  bad" in page
    assert "row 3" in page
    assert "ppo: 0.31 (0.28 to 0.34)" in page
    assert "sft: 0.2" in page


SHARE = {"value": 0.8, "low": 0.7, "high": 0.9, "count": 1234}
JUDGED: dict[str, Any] = {
    "comparisons": 1234, "completions": 2000, "prompts": 500, "preferences": 480, "abstentions": 3, "ties": 7, "order_consistency": SHARE,
    "position_bias": {"value": None, "low": 0.0, "high": 1.0, "count": 0},
    "spent": {"questions": 2468, "prompt_tokens": 9000, "completion_tokens": 2468, "cost": 0.0123},
}  # fmt: skip


def test_shares_of_a_judge_that_were_measured_are_shown() -> None:
    page = page_of(judged=[{"stage": "feedback", "page": "stages/02-feedback/audit.html", "details": JUDGED}])
    assert "same verdict in both orders: 0.8 (0.7 to 0.9)" in page
    assert "what is shown first is taken" not in page
    assert "3 were abstentions, 7 ties. The judge answered 2,468 questions with 11,468 tokens for 0.0123." in page


def test_a_judge_of_whom_nothing_was_measured_has_no_plot() -> None:
    details = JUDGED | {"order_consistency": {"value": None}, "spent": {}}
    page = page_of(judged=[{"stage": "f", "page": "x", "details": details}])
    assert "<svg" not in page
    assert "7 ties. <a" in page


REWARD_SCORES = {
    "histogram": {"test": {"edges": [0.0, 1.0], "chosen": [3], "rejected": [3]}},
    "paired": {"test": {"longer": {"difference": -0.05, "interval": [-0.1, 0.01]}}},
}


def test_the_gain_of_a_reward_model_over_a_guesser_is_told_with_its_interval():
    page = page_of(scored({"accuracy": 0.6}, REWARD_SCORES))
    assert "3 chosen from 0 to 1" in page
    assert "-0.050 over longer (95 % -0.100 to +0.010)" in page
    assert "Blue: chosen answers" not in page_of(scored({"accuracy": 0.6}, {"calibration": {"test": {}}}))


@pytest.fixture
def events() -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for step in range(1, 61):
        metrics = {"reward": step / 60, "kl": step * 0.1, "kl_coef": 0.05, "loss": 0.1, "ended": 1.0, "distinct": 0.5}
        events.append({"event": "metric", "stage": "ppo", "step": step, "metrics": metrics})
        events.append(
            {
                "event": "sample",
                "stage": "ppo",
                "step": step,
                "completions": [{"prompt": "<b>", "completion": "x", "reward": 1, "kl": 0}],
            }
        )
    events.append({"event": "metric", "stage": "other", "step": 1, "metrics": {"reward": 9.0}})
    events.append({"event": "metric", "stage": "ppo", "step": 60, "metrics": {"reward": 2.0}})  # done again
    return events


def test_signs_are_read_in_order(events: list[dict[str, Any]]):
    found = ppo_signals(events, "ppo")
    assert found["reward"][0] == (1, pytest.approx(1 / 60))
    assert found["reward"][-1] == (60, 2.0)
    assert "loss" not in found
    assert ppo_signals(events, "nothing") == {}


def test_every_sign_has_its_plot_but_those_that_never_change(events: list[dict[str, Any]]):
    drawn = ppo_plots("ppo", ppo_signals(events, "ppo"))
    text = " ".join(each["plot"] for each in drawn)
    assert "KL to the reference" in text
    assert "kl_coef" not in text
    assert "reward, mean of 3" in text
    assert all(each["plot"].startswith("<svg") for each in drawn)
    changing = ppo_signals(events, "ppo") | {"kl_coef": [(1.0, 0.1), (2.0, 0.2)]}
    assert "kl_coef" in " ".join(each["plot"] for each in ppo_plots("ppo", changing))


def test_the_first_and_the_last_samples_are_shown(events: list[dict[str, Any]]):
    assert [each["step"] for each in ppo_samples(events, "ppo")] == [1, 60]
    assert ppo_samples(events, "other") == []


def test_a_running_mean_by_hand():
    assert running_mean([(1, 1.0), (2, 3.0), (3, 5.0)], 2) == [(1, 1.0), (2, 2.0), (3, 4.0)]
