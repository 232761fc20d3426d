"""A task may read what an earlier stage writes: it is named by the stage, checked with the recipe, and found in the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.core.errors import DataError, RecipeError
from pipelines.core.load import loads
from pipelines.data import stage_files
from pipelines.data.sources import find

RECIPE = """\
name: x
model: {{checkpoint: some/model}}
stages:
  - {{stage: feedback, prompts: {{path: builtin/python-docs}}, judge: {{name: local, from: model}}, constitution: default{revise}}}
  - {{stage: supervised, task: {{kind: {kind}, train: {train}}}}}
"""


def recipe(train: str = "{from: feedback}", revise: str = ", revise: true", kind: str = "causal"):
    return loads(RECIPE.format(train=train, revise=revise, kind=kind))


@pytest.mark.parametrize("kind", ["causal", "instruction_pairs"])
def test_a_stage_is_named_and_read(kind: str) -> None:
    found = recipe(kind=kind)
    assert found.stages[1].task.train == "stage:feedback"
    assert found.stages[1].reads(found) == ("model", "feedback")
    assert loads(found.to_yaml()) == found


@pytest.mark.parametrize(
    ("train", "revise", "said"),
    [
        ("{from: feedbak}", ", revise: true", "Did you mean 'feedback'"),
        ("{from: feedback}", "", "None does"),
        ("{from: feedback, split: train}", ", revise: true", "unknown key 'split'"),
        ("{from: 3}", ", revise: true", "must be the id"),
        ("nowhere.jsonl", "", "does not exist"),
        ("3", "", "must be a text"),
    ],
)
def test_mistakes(train: str, revise: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe(train, revise)


def test_rows_are_found_once_the_stage_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_files, "_folders", {})
    with pytest.raises(DataError, match="has written nothing yet"):
        find("stage:feedback")
    stage_files.use({"feedback": tmp_path})
    with pytest.raises(DataError, match=r"no revisions\.jsonl"):
        find("stage:feedback")
    (tmp_path / "revisions.jsonl").write_text('{"prompt": "a", "completion": " b", "critique": "c"}\n' * 3)
    task = recipe().stages[1].resolved("supervised")
    rows = task.rows("train")
    assert list(rows.texts) == ["a"] * len(rows)
    assert list(rows.labels) == [" b"] * len(rows)
    first = task.content()["train"]
    (tmp_path / "revisions.jsonl").write_text('{"prompt": "a", "completion": " other", "critique": "c"}\n' * 3)
    assert task.content()["train"] != first
