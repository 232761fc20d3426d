from __future__ import annotations

import json
import re

import pytest
from pydantic import ValidationError

from pipelines.core.config import flatten
from pipelines.core.errors import DataError
from pipelines.tasks.preference.task import WRITTEN, PreferenceReference

ROWS = [{"prompt": f"q {at}", "chosen": f"yes {at}", "rejected": f"no {at}"} for at in range(6)]


def reference(folder, **keys):
    return PreferenceReference.model_validate(keys, context={"folder": folder})


def test_a_file_and_what_a_stage_has_written(tmp_path):
    for place in (tmp_path / "mine.jsonl", tmp_path / "stage" / WRITTEN):
        place.parent.mkdir(exist_ok=True)
        place.write_text("\n".join(map(json.dumps, ROWS)))
    of_file = reference(tmp_path, path="mine.jsonl")
    of_stage = reference(tmp_path, **{"from": "feedback"})
    folders = {"feedback": tmp_path / "stage"}
    assert of_file.rows({}).texts == of_stage.rows(folders).texts == [row["prompt"] for row in ROWS]
    assert len(of_stage.rows(folders, limit=2)) == 2
    assert of_stage.content() is None
    assert of_file.content() == reference(tmp_path, path="mine.jsonl").content()


def test_columns_of_other_names_and_another_split(tmp_path):
    (tmp_path / "test.jsonl").write_text(
        "\n".join(json.dumps({"a": row["prompt"], "b": row["chosen"], "c": row["rejected"]}) for row in ROWS)
    )
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, ROWS[:1])))
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
    (tmp_path / "mine.jsonl").write_text(json.dumps(ROWS[0]))
    with pytest.raises(ValidationError) as caught:
        reference(tmp_path, **keys)
    assert re.search(words, dict(flatten(caught.value))[place])
