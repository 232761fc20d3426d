import json

import pytest

from pipelines.core.events import EventLog
from pipelines.core.load import loads
from pipelines.reports.results import run_results
from pipelines.reports.run_page import write_run_report
from tests.pipelines.test_report import Balanced

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
        "40 of 408 examples (9.8%) overlap: 1 as a whole, 40 in a run of 13 words. The 368 others score accuracy 0.700.",
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
