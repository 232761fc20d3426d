"""A published model is made again from its folder and its data alone, and its scores are held against the stated ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from pipelines.commands import reproduce
from pipelines.commands.reproduce import answer, begin, bring_finery, left_out, place_of, recipe_again, weights_of
from pipelines.core.errors import CommandError, PublishError, Stopped
from pipelines.core.results import MARKER
from pipelines.core.yaml_positions import read_yaml
from pipelines.publishing.destinations.destination import sha256_of
from tests.clean_process import forked_proofs
from tests.finished_run import finished, inside

MANIFEST = {"model": {"stage": "a", "publish": "p", "checkpoint": "owner/base", "revision": "c0ffee"}}
RECIPE = {
    "name": "x",
    "model": {"checkpoint": "owner/base"},
    "stages": [
        {
            "stage": "supervised",
            "id": "a",
            "task": {"train": "rows.csv"},
            "arguments": {"max_steps": 2, "report_to": ["tensorboard", "wandb"]},
        },
        {"stage": "publish", "id": "first", "to": "elsewhere"},
        {
            "stage": "publish",
            "id": "p",
            "to": "hub:me/x",
            "private": False,
            "require": {"a.f1": ">= 0.9"},
            "export": ["onnx"],
        },
        {"stage": "supervised", "id": "later"},
    ],
}


def test_the_recipe_ends_with_its_publication_which_goes_nowhere_else():
    again = recipe_again(RECIPE, {"rows.csv": "data/rows.csv"}, MANIFEST)
    assert [stage["id"] for stage in again["stages"]] == ["a", "p"]
    assert again["stages"][0]["task"] == {"train": "data/rows.csv"}
    assert again["stages"][0]["arguments"] == {"max_steps": 2}
    assert again["stages"][1] == {"stage": "publish", "id": "p", "to": "registry/x"}
    assert again["model"] == {"checkpoint": "owner/base", "revision": "c0ffee"}
    assert RECIPE["model"] == {"checkpoint": "owner/base"}


def test_what_needs_the_authors_packages_and_accounts_is_left_out_and_that_is_said():
    notes = left_out(RECIPE, "p")
    assert notes == [
        "nothing was reported to tensorboard, wandb: no score depends on it",
        "the exports (onnx) were not made again, nor their scores: finery export makes and scores one",
    ]
    assert left_out({"stages": [{"id": "a", "stage": "supervised", "arguments": {"report_to": "none"}}]}, "p") == []


def test_weights_are_those_of_the_model_and_not_of_its_exports(tmp_path):
    sums = {"model.safetensors": "a", "base/model.safetensors": "b", "README.md": "c"}
    (tmp_path / MARKER).write_text(json.dumps({"checksums": {**sums, "int8/model.safetensors": "d"}}))
    (tmp_path / "manifest.json").write_text(json.dumps({"exports": [{"folder": "int8"}]}))
    assert weights_of(tmp_path) == {"model.safetensors": "a", "base/model.safetensors": "b"}
    (tmp_path / "manifest.json").write_text("{}")
    assert weights_of(tmp_path).keys() == {"model.safetensors", "base/model.safetensors", "int8/model.safetensors"}


def test_a_stopped_one_goes_on_and_a_finished_one_begins_again(tmp_path):
    place = tmp_path / "reproduce-x"
    assert begin(place, "one")
    (place / "kept").write_text("")
    assert begin(place, "one")  # stopped before its recipe was there
    assert not (place / "kept").exists()
    (place / "recipe.yaml").write_text("")
    assert not begin(place, "one")
    (place / reproduce.STATE).write_text(json.dumps({"of": "one", "complete": True}))
    with pytest.raises(CommandError, match="holds the reproduction of another publication"):
        begin(place, "other")
    assert (place / "recipe.yaml").exists()
    assert begin(place, "one")
    assert not (place / "recipe.yaml").exists()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(CommandError, match="is no reproduction of finery reproduce; move it away"):
        begin(tmp_path, "one")
    assert (tmp_path / "mine").exists()


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """A copy of a publication, in an empty working folder of a stranger."""
    with inside(finished().root), forked_proofs(), pytest.MonkeyPatch.context() as patch:
        folder = Path(shutil.copytree(finished().root / "published", tmp_path / "copy"))
        patch.chdir(tmp_path)  # undone before the run's folder is left
        yield folder


def refused(folder: Path, **fields: Any) -> list[str]:
    told = answer({"folder": str(folder), **fields})
    assert not told["reproduced"]
    assert not Path(told["place"]).exists()
    return list(told["problems"])


def test_a_folder_that_is_not_what_was_published_is_not_run(copy):
    (copy / "README.md").write_text("")
    assert "'README.md' was changed: its SHA-256 is not the published one" in refused(copy)


def test_data_that_is_not_there_is_named_before_anything_runs(copy):
    (missing,) = refused(copy)
    assert missing.startswith("mine.csv (SHA-256 ")


def test_an_older_publication_is_one_sentence(copy):
    from tests.pipelines.commands.test_verify import make_older

    make_older(copy)
    (sentence,) = refused(copy)
    assert "publish the run again" in sentence


def test_the_published_folder_is_no_working_folder(copy, monkeypatch):
    for folder in (copy, copy / "deeper"):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        with pytest.raises(CommandError, match="which is only read; give the command in another working folder"):
            answer({"folder": str(copy), "data": str(finished().root)})
    assert not [*copy.rglob("runs")]


def test_each_publication_of_a_name_has_a_folder_of_its_own(copy, tmp_path):
    from tests.pipelines.commands.test_verify import replace, write_sums_again

    runs = tmp_path / "runs"
    first = place_of(copy, runs)
    assert first == runs / "reproduce-finished"
    begin(first, sha256_of(copy / "SHA256SUMS"))
    assert place_of(copy, runs) == first
    replace(copy / "recipe.yaml", "seed: 7", "seed: 8")
    write_sums_again(copy)
    second = place_of(copy, runs)
    assert second.name == f"reproduce-finished-{sha256_of(copy / 'SHA256SUMS')[:8]}"
    begin(second, sha256_of(copy / "SHA256SUMS"))
    shutil.rmtree(first)
    assert place_of(copy, runs) == second


def test_code_of_the_checkpoint_runs_only_where_that_is_said(copy):
    from tests.pipelines.commands.test_verify import write_sums_again

    text = (copy / "recipe.yaml").read_text()
    (copy / "recipe.yaml").write_text(text.replace("model:\n", "model:\n  trust_remote_code: true\n", 1))
    write_sums_again(copy)
    with pytest.raises(CommandError, match="read it, then give --trust-remote-code"):
        answer({"folder": str(copy), "data": str(finished().root)})


def test_a_run_that_fails_says_why_and_goes_on_later(copy, monkeypatch, tmp_path):
    monkeypatch.setattr(reproduce.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\necho 'finery: the disk is full'\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(PublishError, match="did not come to its end: the disk is full"):
        answer({"folder": str(copy), "data": str(finished().root)})
    place = tmp_path / "runs/reproduce-finished"
    recipe, _ = read_yaml(place / "recipe.yaml")
    assert recipe["stages"][-1]["to"] == "registry/finished"
    assert (place / "mine.csv").read_bytes() == (finished().root / "mine.csv").read_bytes()
    assert json.loads((place / reproduce.STATE).read_text())["complete"] is False


STOPS = """#!/bin/sh
trap 'touch saved; exit 75' TERM
touch ready
while :; do sleep 0.05; done
"""
"""A run that saves when it is asked to stop."""


def test_a_signal_stops_the_run_waits_for_it_and_says_what_is_left(copy, monkeypatch, tmp_path):
    monkeypatch.setattr(reproduce.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text(STOPS)
    (tmp_path / "python").chmod(0o755)
    place = tmp_path / "runs/reproduce-finished"

    def press() -> None:
        while not (place / "ready").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(Stopped, match=r"^Stopped; the same command goes on in runs/reproduce-finished\.$"):
        answer({"folder": str(copy), "data": str(finished().root)})
    thread.join()
    assert (place / "saved").exists()  # waited for: nothing goes on without an owner
    (tmp_path / "python").write_text("#!/bin/sh\ntest -f saved && echo 'finery: it went on'\nexit 1\n")
    with pytest.raises(PublishError, match="did not come to its end: it went on"):
        answer({"folder": str(copy), "data": str(finished().root)})


@pytest.mark.long
def test_a_stranger_gets_every_digit_and_every_byte_again(copy, tmp_path):
    before = {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()}
    told = answer({"folder": str(copy), "data": str(finished().root)})
    assert told["problems"] == []
    assert told["reproduced"]
    assert {(each["metric"], each["measured"]) for each in told["scores"]} == set(
        finished().scores["glue/mrpc"].items()
    )
    assert told["same_weights"]
    assert {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()} == before
    place = tmp_path / "runs/reproduce-finished"
    assert json.loads((place / reproduce.STATE).read_text())["complete"] is True
    assert (place / "home/stages").is_dir()


def test_the_environment_gets_this_finery(tmp_path):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    bring_finery(packages)
    assert (packages / "pipelines/__main__.py").is_file()
    assert (packages / "service/cli/app.py").is_file()
    assert (packages / "pipelines/configs/tasks").is_dir()
    (about,) = packages.glob("finery-*.dist-info/METADATA")
    assert f"Version: {version('finery')}" in about.read_text()


@pytest.mark.long
def test_a_stranger_gets_them_with_the_versions_of_the_manifest_too(copy, tmp_path):
    """Another version than the one that the tests run with is what the run then has."""
    from tests.pipelines.commands.test_verify import write_sums_again

    wanted = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        tmp_path / "wheel",
        "tqdm==4.66.5",
    ]
    if (had := subprocess.run(wanted, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"packages cannot be had here: {had.stderr[-200:]}")
    manifest = json.loads((copy / "manifest.json").read_text())
    assert manifest["environment"]["tqdm"] != "4.66.5"
    manifest["environment"]["tqdm"] = "4.66.5"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    write_sums_again(copy)
    told = answer({"folder": str(copy), "data": str(finished().root), "environment": True})
    assert told["reproduced"], told
    assert told["same_weights"]
    again = json.loads((tmp_path / "runs/reproduce-finished/registry/finished/manifest.json").read_text())
    assert again["environment"] == manifest["environment"]


@pytest.mark.long
def test_an_environment_that_cannot_be_made_is_one_sentence(tmp_path):
    with pytest.raises(PublishError, match=r"the environment in .* cannot be made: ERROR: .*no-such-thing"):
        reproduce.environment(tmp_path, {"finery": "0", "no-such-thing": "1 +nonsense"})


def test_an_environment_that_is_ready_is_not_made_again(tmp_path):
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment/ready").write_text("")
    assert reproduce.environment(tmp_path, {}) == str(tmp_path / "environment/bin/python")
    assert sys.executable != str(tmp_path / "environment/bin/python")
