"""Evaluating what lies on disk gives what the evaluate stage of the run gave: the same numbers, the same files."""

from __future__ import annotations

import json
import shutil
import zipfile

import pyarrow.parquet as pq
import pytest

from pipelines.commands.evaluate import _folder, answer
from pipelines.core.errors import CommandError, ModelError
from tests.finished_run import finished, inside

RUN = "runs/finished"


@pytest.fixture(autouse=True)
def _there():
    with inside(finished().root):
        yield


def without_seconds(path):
    return {
        name: {key: value for key, value in about.items() if key != "seconds"}
        for name, about in json.loads(path.read_text()).items()
    }


def test_a_run_scores_as_its_evaluate_stage_did(tmp_path):
    told = answer({"models": [RUN], "out": str(tmp_path / "out"), "settings": {"baselines": ["majority"]}})
    stage = finished().run / "stages" / "06-evaluate"
    assert told["metrics"] == finished().scores
    assert set(told["metrics"]) == {"glue/mrpc", "squad", "race/middle", "glue/rte", "glue/stsb", "mine"}
    wanted = {path.name for path in stage.iterdir()} - {"stage.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == wanted
    assert pq.read_table(tmp_path / "out" / "predictions.parquet").equals(pq.read_table(stage / "predictions.parquet"))
    assert (tmp_path / "out" / "squad.predictions.json").read_bytes() == (stage / "squad.predictions.json").read_bytes()
    mine, theirs = without_seconds(tmp_path / "out" / "details.json"), without_seconds(stage / "details.json")
    assert {
        name: (about.get("intervals"), about.get("max_length"), about.get("baselines")) for name, about in mine.items()
    } == {
        name: (about.get("intervals"), about.get("max_length"), about.get("baselines"))
        for name, about in theirs.items()
    }
    assert told["details"]["glue"]["missing"] == [
        "glue/cola",
        "glue/sst2",
        "glue/qqp",
        "glue/mnli",
        "glue/qnli",
        "glue/wnli",
    ]


def test_a_folder_with_scores_of_before_is_taken_and_another_is_not(tmp_path):
    (tmp_path / "baselines").mkdir()
    (tmp_path / "metrics.json").write_text("{}")
    assert _folder(str(tmp_path)) == tmp_path
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(CommandError, match=r"holds something else \(mine.txt\)"):
        _folder(str(tmp_path))


@pytest.mark.parametrize("name", ["published", f"{RUN}/stages/01-para"])
def test_a_published_or_a_stage_folder_scores_as_in_the_run(name):
    told = answer({"models": [name]})
    assert told["metrics"] == {"glue/mrpc": finished().scores["glue/mrpc"]}
    assert told["files"] == []
    assert told["details"]["glue/mrpc"]["max_length"] == 24


def test_several_models_score_each_its_own_task():
    told = answer({"models": ["published", f"{RUN}/stages/04-several/tasks/rte/model"]})
    assert told["metrics"] == {name: finished().scores[name] for name in ("glue/mrpc", "glue/rte")}


def test_a_checkpoint_that_says_nothing_needs_to_be_told(tmp_path):
    shutil.copytree("published", tmp_path / "plain", ignore=shutil.ignore_patterns("recipe.yaml", "publication.json"))
    with pytest.raises(CommandError, match="does not say what task it was trained on; name the benchmarks"):
        answer({"models": [str(tmp_path / "plain")]})
    told = answer({"models": [str(tmp_path / "plain")], "benchmarks": ["glue/mrpc"], "settings": {"max_length": 24}})
    assert told["metrics"]["glue/mrpc"] == finished().scores["glue/mrpc"]
    with pytest.raises(
        ModelError, match="tells not_equivalent, equivalent apart, but 'glue/rte' needs entailment, not_entailment"
    ):
        answer({"models": [str(tmp_path / "plain")], "benchmarks": ["glue/rte"]})
    with pytest.raises(ModelError, match="has no trained question answering head"):
        answer({"models": [str(tmp_path / "plain")], "benchmarks": ["squad"]})


def test_a_limit_and_bf16_are_stated():
    told = answer({"models": ["published"], "settings": {"max_eval_samples": 6, "mixed_precision": "bf16"}})
    assert told["details"]["glue/mrpc"]["examples"] == {"validation": 6}
    assert told["details"]["glue/mrpc"]["precision"] == "bf16"


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (
            {"models": ["published"], "benchmarks": ["squad"]},
            "'squad' cannot be scored with the model of 'para', which learnt 'glue/mrpc'.*give a model that was "
            "trained on it",
        ),
        (
            {"models": ["published"], "benchmarks": ["glue/mrcp"]},
            "unknown benchmark 'glue/mrcp'. Did you mean 'glue/mrpc'",
        ),
        ({"models": [RUN], "benchmarks": ["glue/sst2"]}, "none of the models was trained on 'glue/sst2'"),
        ({"models": [RUN], "benchmarks": ["squad", "squad"]}, "named twice"),
        ({"models": ["published"], "settings": {"mixed_precision": "fp8"}}, "mixed_precision"),
        ({"models": ["published"], "settings": {"baselines": ["mayority"]}}, "unknown baseline 'mayority'"),
        ({"models": ["published"], "out": "recipe.yaml"}, "is a file; give a folder"),
        ({"models": ["published"], "out": "published"}, "holds something else"),
        ({"models": ["runs/gone"]}, "there is no folder 'runs/gone'"),
        ({"models": [RUN], "submission": "s.tar"}, "must end with .zip"),
        ({"models": [RUN], "submission": "s.zip", "settings": {"max_eval_samples": 5}}, "--limit leaves out rows"),
        (
            {"models": [RUN], "submission": "s.zip"},
            "lacks 11 of 11 files.*MRPC.tsv .*has 5 rows where the official test set has 1725",
        ),
    ],
)
def test_what_cannot_be_scored_is_one_sentence(request_, sentence):
    with pytest.raises(CommandError, match=sentence) as refused:
        answer(request_)
    assert "\n" not in str(refused.value)


def test_a_submission_holds_what_the_models_say_about_the_test_splits(tmp_path, monkeypatch):
    """The synthetic test sets have five rows, which stand for the official ones here."""
    from dataclasses import replace

    from pipelines.evaluation.official import glue

    small = tuple(replace(part, rows=5) for part in glue.PARTS)
    monkeypatch.setattr(glue, "PARTS", small)
    told = answer({"models": [RUN], "submission": str(tmp_path / "s.zip"), "partial": True})
    assert told["submission"]["files"] == ["MRPC.tsv", "STS-B.tsv", "RTE.tsv"]
    assert len(told["submission"]["missing"]) == 8
    assert told["metrics"] == {}
    with zipfile.ZipFile(tmp_path / "s.zip") as archive:
        texts = {name: archive.read(name).decode().splitlines() for name in archive.namelist()}
    assert all(len(rows) == 6 and rows[0] == "index\tprediction" for rows in texts.values())
    assert {row.split("\t")[1] for row in texts["RTE.tsv"][1:]} <= {"entailment", "not_entailment"}
    again = answer(
        {"models": [RUN], "submission": str(tmp_path / "again.zip"), "partial": True, "benchmarks": ["glue/rte"]}
    )
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "s.zip").read_bytes()
    assert again["metrics"] == {"glue/rte": finished().scores["glue/rte"]}
