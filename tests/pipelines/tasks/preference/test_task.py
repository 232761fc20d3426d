"""Preferences as a task and as the `data` of a stage."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import ValidationError

from pipelines.core.config import flatten
from pipelines.core.errors import DataError
from pipelines.core.registry import TASKS
from pipelines.tasks.preference.task import WRITTEN, Preference, PreferenceReference, drawn_share

ALPACA_EVAL = TASKS.load("alpaca_eval_preferences")
HH_HARMLESS = TASKS.load("hh-rlhf/harmless-base")

ROWS = [{"prompt": f"q {at}", "chosen": f"yes {at}", "rejected": f"no {at}"} for at in range(40)]


@pytest.fixture
def folder(tmp_path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (tmp_path / "single.jsonl").write_text(
        "\n".join(json.dumps({"prompt": f"q {at}", "completion": "x", "label": at % 2 == 0}) for at in range(10))
    )
    return tmp_path


def block(folder, **keys):
    return Preference.model_validate({"kind": "preference", "train": "train.jsonl", **keys}, context={"folder": folder})


def found(folder, **keys):
    with pytest.raises(ValidationError) as caught:
        block(folder, **keys)
    return dict(flatten(caught.value))


def test_a_share_of_train_is_held_out_by_the_seed_and_is_the_same_for_everybody(folder):
    task = block(folder, validation=0.25).task("x")
    train, held = task.rows("train"), task.rows("validation")
    assert (len(train), len(held)) == (30, 10)
    assert sorted([*train.index, *held.index]) == list(range(40))
    assert block(folder, validation=0.25).task("another").rows("validation").index == held.index
    other = block(folder, validation=0.25, split_seed=5).task("x")
    assert other.rows("validation").index != held.index
    assert len({*task.content().values(), *other.content().values()}) == 4


def test_the_draw_is_a_partition():
    drawn, rest = drawn_share(101, 0.2, 3)
    assert len(drawn) == 20
    assert sorted(drawn + rest) == list(range(101))
    assert drawn_share(101, 0.2, 3) == (drawn, rest)


def test_a_file_a_default_and_what_is_neither(folder):
    assert len(block(folder, validation="dev.jsonl").task("x").rows("train")) == 40
    assert len(block(folder).task("x").rows("validation")) == 4
    assert "must be a share of train between 0 and 1" in found(folder, validation=1.5)[("validation",)]
    assert "must be a file" in found(folder, validation=True)[("validation",)]
    assert "it is none; leave it out" in found(folder, split_seed=3)[("split_seed",)]
    assert "Did you mean 'chosen'?" in found(folder, columns={"chosn": "a"})[("columns", "chosn")]


def test_single_answers_are_for_other_stages(folder):
    task = block(folder, train="single.jsonl").task("x")
    with pytest.raises(DataError, match=r"single answers .* are learnt by the stage kto"):
        task.rows("train")
    assert set(task.labelled("train").labels) == {0, 1}
    assert len(block(folder).task("x").labelled("train", 3)) == 6


def test_bad_rows_are_skipped_when_the_task_says_so(folder):
    (folder / "train.jsonl").write_text(
        "\n".join(map(json.dumps, [{"prompt": "q", "chosen": "a", "rejected": "a"}, *ROWS]))
    )
    with pytest.raises(DataError, match="row 1"):
        block(folder, validation="dev.jsonl").task("x").rows("train")
    rows = block(folder, validation="dev.jsonl", skip_bad_rows=True).task("x").rows("train", 2)
    assert (rows.index, list(rows.skipped)) == ([1, 2], [0])


def test_too_few_rows_to_hold_some_out(folder):
    (folder / "train.jsonl").write_text(json.dumps(ROWS[0]))
    with pytest.raises(DataError, match="too few to hold 20% out"):
        block(folder, validation=0.2).task("x").rows("train")


def test_the_real_sets_are_read_and_split(mirror, monkeypatch):
    monkeypatch.setenv("FINERY_DATA", str(mirror))
    assert (len(ALPACA_EVAL.rows("train", 50)), len(ALPACA_EVAL.rows("test"))) == (50, 1500)
    train, held = HH_HARMLESS.rows("train"), HH_HARMLESS.rows("validation")
    assert len(train) + len(held) + len(train.skipped) + len(held.skipped) == 1812
    assert len(held) + len(held.skipped) == 362  # a fifth
    assert not set(train.index) & set(held.index)
    assert set((train.skipped | held.skipped).values()) == {"has an empty answer in the column 'chosen'"}


REFERENCE_ROWS = [{"prompt": f"q {at}", "chosen": f"yes {at}", "rejected": f"no {at}"} for at in range(6)]


def reference(folder, **keys):
    return PreferenceReference.model_validate(keys, context={"folder": folder})


def test_a_file_and_what_a_stage_has_written(tmp_path):
    for place in (tmp_path / "mine.jsonl", tmp_path / "stage" / WRITTEN):
        place.parent.mkdir(exist_ok=True)
        place.write_text("\n".join(map(json.dumps, REFERENCE_ROWS)))
    of_file = reference(tmp_path, path="mine.jsonl")
    of_stage = reference(tmp_path, **{"from": "feedback"})
    folders = {"feedback": tmp_path / "stage"}
    assert of_file.rows({}).texts == of_stage.rows(folders).texts == [row["prompt"] for row in REFERENCE_ROWS]
    assert len(of_stage.rows(folders, limit=2)) == 2
    assert of_stage.content() is None
    assert of_file.content() == reference(tmp_path, path="mine.jsonl").content()


def test_columns_of_other_names_and_another_split(tmp_path):
    (tmp_path / "test.jsonl").write_text(
        "\n".join(json.dumps({"a": row["prompt"], "b": row["chosen"], "c": row["rejected"]}) for row in REFERENCE_ROWS)
    )
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, REFERENCE_ROWS[:1])))
    found = reference(
        tmp_path, path=str(tmp_path), split="test", columns={"prompt": "a", "chosen": "b", "rejected": "c"}
    )
    assert len(found.rows({})) == 6
    with pytest.raises(DataError, match=r"no split 'tset'\. Did you mean 'test'"):
        reference(tmp_path, path=str(tmp_path), split="tset").rows({})


@pytest.mark.parametrize(
    ("keys", "place", "words"),
    [
        ({}, (), "needs either 'path' .* or 'from' .*; neither was given"),
        ({"path": "mine.jsonl", "from": "feedback"}, (), "both were given"),
        ({"from": "feedback", "split": "test"}, ("split",), "'from' reads what a stage has written; leave it out"),
        ({"path": "mine.jsonl", "columns": {"chosn": "x"}}, ("columns", "chosn"), "Did you mean 'chosen'"),
    ],
)
def test_mistakes_stand_at_their_key(tmp_path, keys, place, words):
    (tmp_path / "mine.jsonl").write_text(json.dumps(REFERENCE_ROWS[0]))
    with pytest.raises(ValidationError) as caught:
        reference(tmp_path, **keys)
    assert re.search(words, dict(flatten(caught.value))[place])
