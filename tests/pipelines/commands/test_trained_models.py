"""A name stands for the models behind it, and each says what it was trained on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipelines.commands.trained_models import find, find_all
from pipelines.core.errors import CommandError
from tests.finished_run import finished, inside

TASKS = {
    "para": "glue/mrpc",
    "span": "squad",
    "race": "race/middle",
    "several/rte": "glue/rte",
    "several/stsb": "glue/stsb",
    "mine": "mine",
}


def told(models):
    return {each.id: each.task for each in models}


def test_a_run_holds_the_models_of_all_its_stages():
    with inside(finished().root):
        assert told(find("runs/finished")) == TASKS
        assert {each.seed for each in find("runs/finished")} == {7}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("runs/finished/stages/01-para", {"para": "glue/mrpc"}),
        ("runs/finished/stages/01-para/model", {"para": "glue/mrpc"}),
        ("runs/finished/stages/04-several", {"several/rte": "glue/rte", "several/stsb": "glue/stsb"}),
        ("runs/finished/stages/04-several/tasks/stsb/model", {"several/stsb": "glue/stsb"}),
        ("published", {"para": "glue/mrpc"}),
    ],
)
def test_folders_say_what_is_in_them(name, expected):
    with inside(finished().root):
        assert told(find(name)) == expected
        target = finished().root / name
        assert told(find(str(target.resolve()))) == expected  # in the home too, where there is no run around it


def test_a_published_folder_tells_wherever_it_lies(tmp_path):
    """Even where the files of its recipe are not: only its own stage's block is read."""
    shutil.copytree(finished().root / "published", tmp_path / "moved")
    found = find(str(tmp_path / "moved"))
    assert told(found) == {"para": "glue/mrpc"}
    assert found[0].subject.max_length == 24


def test_a_stage_whose_rows_are_gone_tells_what_it_learnt(tmp_path):
    shutil.copytree(finished().run / "stages" / "05-mine", tmp_path / "05-mine")
    record = tmp_path / "05-mine" / "stage.json"
    record.write_text(record.read_text().replace(str(finished().root / "mine.csv"), "/gone/mine.csv"))
    (found,) = find(str(tmp_path / "05-mine"))
    assert (found.id, found.subject.task.columns, found.subject.max_length) == ("mine", ("text",), 16)


def test_a_chat_template_in_a_file_that_is_gone_is_the_one_of_the_tokenizer(tmp_path):
    task = {"kind": "causal", "train": "gone.jsonl"}
    record = {"id": "chat", "stage": "supervised", "identity": {"task": task, "chat_template": "/gone/mine.jinja"}}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "finery"}')
    (tmp_path / "stage.json").write_text(json.dumps(record))
    (found,) = find(str(tmp_path))
    assert (found.subject.task.kind, found.subject.chat_template) == ("causal", None)


def test_what_others_made_says_nothing(tmp_path):
    shutil.copytree(
        finished().root / "published",
        tmp_path / "plain",
        ignore=shutil.ignore_patterns("recipe.yaml", "publication.json"),
    )
    assert told(find(str(tmp_path / "plain"))) == {"model": None}


def test_several_names_get_ids_of_their_own():
    with inside(finished().root):
        found = find_all(["published", "runs/finished/stages/01-para", "runs/finished/stages/04-several"])
    assert told(found) == {
        "para": "glue/mrpc",
        "para-2": "glue/mrpc",
        "several/rte": "glue/rte",
        "several/stsb": "glue/stsb",
    }
    assert [each.subject.task for each in found] == ["glue/mrpc", "glue/mrpc", "glue/rte", "glue/stsb"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("runs/gone", "there is no folder"),
        ("runs/finished/stages/06-evaluate", "left no model"),
        ("recipe.yaml", "is a file"),
        (" ", "name is empty"),
    ],
)
def test_names_without_a_model_are_one_sentence(name, sentence):
    with inside(finished().root), pytest.raises(CommandError, match=sentence):
        find(name)


@pytest.mark.parametrize("older", [False, True])
def test_what_a_stage_of_another_kind_left_is_found_whether_or_not_its_record_names_the_kind(tmp_path, older):
    model = tmp_path / "01-reward" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "finery"}')
    pairs = {"kind": "preference", "train": "builtin/python-docs", "name": "preferences"}
    identity = {"task": pairs, "arguments": {"center_rewards_coefficient": 0.01}}
    record = {"id": "reward", "identity": identity, **({} if older else {"stage": "reward"})}
    (model.parent / "stage.json").write_text(json.dumps(record))
    (found,) = find(str(model))
    assert (found.id, found.subject is None) == (("model", True) if older else ("reward", False))
    assert Path(found.checkpoint.source) == model
