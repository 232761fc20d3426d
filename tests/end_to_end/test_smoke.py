"""Every recipe of configs/smoke, run to its end: what it leaves behind, and what a second run does not do again."""

from __future__ import annotations

import cProfile
import json
import math
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import CodeType
from typing import Any

import pyarrow.parquet as pq
import pytest
import sacrebleu

import pipelines
from pipelines.core.events import read_events
from pipelines.core.load import load
from pipelines.core.recipe import START, Stage
from pipelines.core.registry import OBJECTIVES, STAGES, TASK_KINDS
from pipelines.models import stage_models
from pipelines.runs import fingerprints
from pipelines.runs.run import RecipeRun, run
from tests.clean_process import forked_proofs
from tests.covering import cover

SMOKE = sorted((Path(__file__).resolve().parents[2] / "configs" / "smoke").glob("*.yaml"))
SMOKE = [path for path in SMOKE if "\nmatrix:" not in path.read_text()]  # studies: test_smoke_study


def named_in(recipe: Path) -> set[str]:
    """The stages and kinds of tasks that a recipe names."""

    def names(value: Any) -> Iterator[str]:
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from names(part)
        if isinstance(value, dict):
            yield from (value[key] for key in ("stage", "kind") if key in value)

    return {*names(load(recipe).plain())} & {*STAGES, *TASK_KINDS}


PRETRAINED = next(path for path in SMOKE if path.stem == "encoder-full")
ALWAYS = {SMOKE.index(PRETRAINED), *cover([named_in(path) for path in SMOKE])}
"""Recipes that together have each stage and each kind of task. The others run with the long tests: a name is held by its
contract in each run."""
LOGITS_KINDS = ("classification", "token_classification", "qa", "multiple_choice")
"""Kinds described in place whose predictions have logits, which a publication computes again."""
TRAINED = {"train_runtime", "train_samples_per_second", "trainable_parameters", "all_parameters", "peak_memory_bytes"}


class Place:
    """One working folder with a home of its own, shared by the tests of one recipe: each continues where the last one left."""

    def __init__(self, root: Path, recipe: Path) -> None:
        self.root, self.recipe, self.home = root, recipe, root / "home"
        self.loaded = load(recipe)
        self.run = root / "runs" / self.loaded.name
        self.executed: dict[str, set[str]] = {}
        """Modules of ours whose code ran while a stage did its work, by the stage's id."""

    def go(self, *overrides: str) -> list[dict[str, Any]]:
        """Run the recipe in this process; returns the events of this run alone."""
        before = [event["id"] for event in read_events(self.run / "events.jsonl")]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.root)
            patch.setenv("FINERY_HOME", str(self.home))
            assert run(load(self.recipe, overrides), Path("runs") / self.loaded.name) == Path("runs") / self.loaded.name
        return list(read_events(self.run / "events.jsonl", after=max(before, default=0)))

    def folder(self, number: int) -> Path:
        return self.run / "stages" / f"{number:02d}-{self.loaded.stages[number - 1].id}"

    def registry(self) -> Path | None:
        to = [stage.to for stage in self.loaded.stages if stage.stage == "publish"]
        return self.root / to[0] if to else None


@contextmanager
def traced(executed: dict[str, set[str]]) -> Iterator[None]:
    """Note every module of ours in which a function is called while a stage does its work."""
    work, root = RecipeRun._run_stage, str(Path(pipelines.__file__).parent) + "/"

    def run_stage(job: RecipeRun, stage: Stage, attempt: Path, fingerprint: str) -> None:
        calls = cProfile.Profile(subcalls=False, builtins=False)
        try:
            calls.runcall(work, job, stage, attempt, fingerprint)
        finally:
            codes = (entry.code for entry in calls.getstats())
            files = {code.co_filename for code in codes if isinstance(code, CodeType)}
            own = (file.removeprefix(root).partition("/templates/")[0] for file in files if file.startswith(root))
            own = (
                name.removesuffix(".py").removesuffix("/__init__") for name in own if not name.startswith("templates/")
            )
            executed[stage.id] = {f"pipelines.{name.replace('/', '.')}" for name in own}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecipeRun, "_run_stage", run_stage)
        yield


@pytest.fixture(scope="module")
def proofs() -> Iterator[None]:
    """Publications are proved in forked children: tests/pipelines/publishing proves in fresh interpreters."""
    with forked_proofs():
        yield


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(path, id=path.stem, marks=() if at in ALWAYS else pytest.mark.long)
        for at, path in enumerate(SMOKE)
    ],
)
def place(request: pytest.FixtureRequest, proofs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp(request.param.stem), request.param)
    with traced(made.executed):
        made.go()
    yield made
    shutil.rmtree(made.root, ignore_errors=True)


def test_whatever_a_stage_executes_is_part_of_its_fingerprint(place: Place) -> None:
    code = {
        stage.id: fingerprints.modules_of(stage) | stage.modules(place.loaded) | {stage_models.__name__}
        for stage in place.loaded.stages
    }
    for stage in place.loaded.stages:
        read, waiting = {stage.id}, [stage]
        while waiting:  # the fingerprint of a stage that it reads holds that stage's code
            found = {each.partition("/")[0] for each in waiting.pop().reads(place.loaded)} - {START} - read
            read |= found
            waiting += [place.loaded.stage(each) for each in found]
        counted = set(fingerprints.used_by(module for each in read for module in code[each]))
        executed = {name for name in place.executed[stage.id] if fingerprints.counts(name)}
        assert executed - counted - {type(each).__module__ for each in place.loaded.stages} == set()
        assert executed & counted, "the probe saw nothing"


def test_the_run_folder_is_laid_out_as_promised(place: Place) -> None:
    assert load(place.run / "recipe.yaml").to_yaml() == place.loaded.to_yaml()
    manifest = json.loads((place.run / "manifest.json").read_text())
    assert manifest["name"] == place.loaded.name
    assert {"python", "torch", "transformers", "tokenizers", "datasets"} <= set(manifest["versions"])
    assert manifest["hardware"]["memory_bytes"] > 0
    assert manifest["wall_time"] > 0
    assert datetime.fromisoformat(manifest["started"]) < datetime.fromisoformat(manifest["finished"])
    assert [stage["id"] for stage in manifest["stages"]] == ["tokenizer", *(stage.id for stage in place.loaded.stages)]
    assert len({stage["fingerprint"] for stage in manifest["stages"]}) == len(manifest["stages"])
    for stage in manifest["stages"]:
        assert len(stage["fingerprint"]) == len(stage["code"]) == 32
        if not stage["id"].startswith("publish"):
            assert stage["data"], f"{stage['id']} read data, but no fingerprint of it is recorded"
    assert (place.run / "tokenizer" / "model" / "tokenizer.json").is_file()
    for number, stage in enumerate(place.loaded.stages, start=1):
        folder = place.folder(number)
        assert folder.is_symlink()
        assert folder.resolve().parent == place.home / "stages"
        assert json.loads((folder / "stage.json").read_text())["id"] == stage.id
    assert {path.name for path in place.run.iterdir()} <= {
        "recipe.yaml",
        "manifest.json",
        "events.jsonl",
        "stages",
        "tokenizer",
        "history",
        ".lock",
        "report.html",
        "README.md",
    }


def test_nothing_temporary_or_unfinished_is_left(place: Place) -> None:
    left = [
        path
        for path in place.root.rglob("*")
        if path.name.endswith((".tmp", ".partial", ".incoming", ".doomed", ".written"))
    ]
    assert left == []
    assert not [
        path for path in place.root.rglob("*") if path.suffix in (".pkl", ".ckpt") or path.name == "pytorch_model.bin"
    ]


def test_events_tell_the_story_in_order(place: Place) -> None:
    events = list(read_events(place.run / "events.jsonl"))
    ids = [event["id"] for event in events]
    assert all(one < other for one, other in pairwise(ids))
    assert events[0]["event"] == "started"
    assert events[0]["stages"] == [stage.id for stage in place.loaded.stages]
    assert events[-1]["event"] == "finished"
    times = [datetime.fromisoformat(event["time"]) for event in events]
    assert times == sorted(times)
    assert all(time.tzinfo is not None for time in times)
    done = [event["stage"] for event in events if event["event"] == "stage_finished"]
    assert done[: len(place.loaded.stages) + 1] == ["tokenizer", *(stage.id for stage in place.loaded.stages)]
    for stage in place.loaded.stages:
        if stage.trains:
            steps = [
                event["step"]
                for event in events
                if event["event"] == "progress" and event["stage"] == stage.id and "step" in event
            ]
            metrics = json.loads((place.folder(place.loaded.stages.index(stage) + 1) / "metrics.json").read_text())
            assert 0 < steps[-1] <= metrics["train_steps"]


def test_every_stage_leaves_what_it_should(place: Place) -> None:
    for number, stage in enumerate(place.loaded.stages, start=1):
        folder = place.folder(number)
        if stage.trains:
            assert list((folder / "model").glob("*.safetensors"))
            metrics = json.loads((folder / "metrics.json").read_text())
            assert set(metrics) >= TRAINED
            assert 0 < metrics["trainable_parameters"] <= metrics["all_parameters"]
            assert metrics["train_runtime"] > 0
        if stage.stage == "evaluate":
            details = json.loads((folder / "details.json").read_text())
            for benchmark, scores in json.loads((folder / "metrics.json").read_text()).items():
                assert all(math.isfinite(value) for value in scores.values())
                if "objective" in details[benchmark]:
                    assert 0 < sum(details[benchmark]["examples"].values()) <= stage.max_eval_samples
                    assert set(OBJECTIVES.load(details[benchmark]["objective"]).text_scores) <= set(scores)
                    continue
                rows = pq.read_table(folder / "predictions.parquet").to_pylist()
                rows = [row for row in rows if row["benchmark"] == benchmark]
                if "few_shot" in details[benchmark]:
                    draws = {row["draw"] for row in rows}
                    assert (
                        len({(row["draw"], row["index"]) for row in rows})
                        == len(rows)
                        == len(draws) * stage.max_eval_samples
                    )
                    shots = int(benchmark.rpartition("/")[2].removesuffix("-shot"))
                    assert {len(row["examples"]) for row in rows} == {shots}
                    right = [
                        row["label"] == row["prediction"] if "label" in row else row["hypothesis"] == row["reference"]
                        for row in rows
                    ]
                    assert scores["acc"] == pytest.approx(sum(right) / len(rows), abs=1e-12)
                    continue
                assert len(rows) == stage.max_eval_samples
                assert len({row["index"] for row in rows}) == len(rows)
                if "hypothesis" in rows[0]:
                    said, right = [row["hypothesis"] for row in rows], [[row["reference"] for row in rows]]
                    if "bleu" in scores:
                        assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(said, right).score, abs=1e-12)
                    elif "accuracy" in scores:  # classes that were written
                        assert scores["accuracy"] == pytest.approx(
                            sum(one == other for one, other in zip(said, right[0], strict=True)) / len(rows)
                        )
                    else:
                        assert 0 <= scores["rougeL"] <= 100
                        assert scores.get("perplexity", 1.0) >= 1
                    continue
                if "tokens" in rows[0]:
                    words = [pair for row in rows for pair in zip(row["tags"], row["predicted_tags"], strict=True)]
                    assert scores["accuracy"] == pytest.approx(
                        sum(one == other for one, other in words) / len(words), abs=1e-12
                    )
                    continue
                if "answers" in rows[0]:
                    assert json.loads((folder / f"{benchmark}.predictions.json").read_text()) == {
                        row["id"]: row["answer"] for row in rows
                    }
                    assert 0 <= scores["exact_match"] <= scores["f1"] <= 100
                    continue
                if "score_chosen" in rows[0]:  # pairs; the same score counts half
                    better = [
                        (row["score_chosen"] > row["score_rejected"])
                        + 0.5 * (row["score_chosen"] == row["score_rejected"])
                        for row in rows
                    ]
                    assert scores == {"accuracy": pytest.approx(sum(better) / len(rows), abs=1e-12)}
                    continue
                right = sum(row["label"] == row["prediction"] for row in rows)
                assert scores["accuracy"] == pytest.approx(right / len(rows), abs=1e-12)
                if rows[0].get("options") is None:  # multiple choice has an accuracy alone
                    assert 0 <= scores["f1"] <= 1


def test_the_publication_is_complete_and_its_checksums_hold(place: Place) -> None:
    folder = place.registry()
    if folder is None:
        pytest.skip("this recipe does not publish")
    publication = json.loads((folder / "publication.json").read_text())
    assert publication["complete"] is True
    assert publication["verification"]["texts"] > 0
    tasks = [stage.task for stage in place.loaded.stages if stage.trains and getattr(stage, "task", None)]
    predicted = any(task == "builtin/python-docs" or getattr(task, "kind", None) in LOGITS_KINDS for task in tasks)
    assert (publication["verification"]["rows"] > 0) == predicted
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {*publication["checksums"], "SHA256SUMS", "publication.json"}
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count(": OK") == len(publication["checksums"]) - ("SHA256SUMS" in publication["checksums"])
    assert len(publication["checksums"]) >= 8
    assert str(place.root) not in (folder / "README.md").read_text()


def test_the_same_recipe_again_does_nothing_again(place: Place) -> None:
    before = {
        path: path.stat().st_mtime_ns
        for path in (place.home / "stages").rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }
    events = place.go()
    done = {event["stage"]: event["reused"] for event in events if event["event"] == "stage_finished"}
    assert done == dict.fromkeys(["tokenizer", *(stage.id for stage in place.loaded.stages)], True)
    assert not [event for event in events if event["event"] in ("metric", "progress", "checkpoint")]
    assert (events[0]["event"], events[-1]["event"]) == ("started", "finished")
    assert events[-1]["seconds"] < 5
    after = {
        path: path.stat().st_mtime_ns
        for path in (place.home / "stages").rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }
    assert after == before


@pytest.mark.parametrize("place", [PRETRAINED], indirect=True, ids=[PRETRAINED.stem])
def test_a_deleted_publication_is_made_again_and_nothing_else(place: Place) -> None:
    folder = place.registry()
    assert folder is not None
    shutil.rmtree(folder)
    events = place.go()
    done = {event["stage"]: event["reused"] for event in events if event["event"] == "stage_finished"}
    assert done == {"tokenizer": True, "pretrain": True, "supervised": True, "evaluate": True, "publish": False}
    assert json.loads((folder / "publication.json").read_text())["complete"] is True


@pytest.mark.parametrize("place", [PRETRAINED], indirect=True, ids=[PRETRAINED.stem])
def test_a_changed_fine_tuning_keeps_the_pretrained_stage(place: Place) -> None:
    folder = place.registry()
    assert folder is not None
    old = (folder / "model.safetensors").read_bytes()
    events = place.go("stages.supervised.arguments.learning_rate=5e-3")
    done = {event["stage"]: event["reused"] for event in events if event["event"] == "stage_finished"}
    assert done == {"tokenizer": True, "pretrain": True, "supervised": False, "evaluate": False, "publish": False}
    assert (folder / "model.safetensors").read_bytes() != old
    history = {path.name.rpartition("-")[0] for path in (place.run / "history").iterdir()}
    assert history >= {"02-supervised", "03-evaluate"}


@pytest.mark.parametrize("place", [PRETRAINED], indirect=True, ids=[PRETRAINED.stem])
@pytest.mark.parametrize("harm", ["removed", "cut short"])
def test_a_stage_that_lost_its_weights_is_made_again(place: Place, harm: str) -> None:
    place.go("stages.supervised.arguments.learning_rate=5e-3")
    weights = place.folder(2) / "model" / "model.safetensors"
    good = weights.read_bytes()
    if harm == "removed":
        weights.unlink()
    else:
        weights.write_bytes(good[:-100])
    events = place.go("stages.supervised.arguments.learning_rate=5e-3")
    done = {event["stage"]: event["reused"] for event in events if event["event"] == "stage_finished"}
    assert done == {"tokenizer": True, "pretrain": True, "supervised": False, "evaluate": True, "publish": True}
    said = [event["message"] for event in events if event["event"] == "warning" and event["stage"] == "supervised"]
    assert any("model/model.safetensors" in message and "made again" in message for message in said)
    assert weights.read_bytes() == good
