import json
import time

import numpy as np
import pytest

from pipelines.core.load import loads
from pipelines.evaluation import contamination
from pipelines.tasks.scoring import score

RECIPE = """
name: t
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: pretrain, objective: masked_lm, datasets: [{path: novels.jsonl}], arguments: {max_steps: 1}}
  - {stage: supervised, id: mine, task: {kind: classification, columns: [text], label: label, train: train.csv, validation: dev.csv}}
  - {stage: supervised, id: other, from: pretrain, task: {kind: classification, columns: [text], label: label, train: other.csv, validation: dev.csv}}
  - {stage: evaluate, from: mine}
"""
SHIPS = "an entirely different piece of writing about ships and harbours of the north"
SENTENCE = "we hold these truths to be self evident that all men are created equal"


@pytest.fixture
def made(tmp_path, context):
    rows = [f"sentence number {at} of a file with many rows that are all different from each other" for at in range(40)]
    files = {
        "train.csv": ["text,label", *(f"{text},{'yes' if at % 2 else 'no'}" for at, text in enumerate(rows[:10]))],
        "other.csv": ["text,label", f"{SHIPS},yes", "x,no"],
        "dev.csv": [
            "text,label",
            f"{rows[3].upper()},yes",
            f"{SHIPS},no",
            f"he said {SENTENCE} and left,yes",
            *(f"short {at},no" for at in range(17)),
        ],
        "novels.jsonl": [json.dumps({"text": f"once upon a time. {SENTENCE}, they wrote."})],
    }
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    recipe = loads(RECIPE, folder=tmp_path)
    return context(recipe, "evaluate", {}), recipe.stages[1].resolved("mine")


def test_everything_that_led_to_the_model_is_compared_and_nothing_else(made):
    given, task = made
    rows = task.rows("validation")
    logits = np.eye(2, dtype=np.float32)[np.zeros(len(rows), dtype=int)]
    told = contamination.overlap_report(given, "mine", rows, score(task), logits, np.array(rows.labels))
    assert (told["examples"], told["exact"], told["partly"], told["seen"]) == (
        20,
        1,
        2,
        2,
    )  # the duplicate shares runs as well
    assert [each["stage"] for each in told["sources"]] == ["pretrain", "mine"]  # `other` led to another model
    assert [(each["index"], each["stage"], each["exact"]) for each in told["found"]] == [
        (0, "mine", True),
        (2, "pretrain", False),
    ]
    assert told["found"][1]["words"] in SENTENCE
    assert told["clean"]["examples"] == 18
    assert told["clean"]["scores"]["accuracy"] == 1.0  # the 18 others are all 'no', which is what was said
    assert "overlap with what was trained on (mine, pretrain)" in contamination.overlap_warning(
        "mine", "validation", told
    )


def test_the_answer_is_kept_by_content(made, tmp_path, monkeypatch):
    given, task = made
    rows = task.rows("validation")
    first = contamination.overlap_of(given, "mine", rows)
    began = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(contamination, "_look", lambda *_: pytest.fail("looked again"))
        again = contamination.overlap_of(given, "mine", rows)
    assert time.monotonic() - began < 5
    assert (again.exact.tolist(), again.found) == (first.exact.tolist(), first.found)
    with open(tmp_path / "train.csv", "a") as file:
        file.write("short 3,no\n")
    assert len(contamination.overlap_of(given, "mine", task.rows("validation")).exact) == 2


def test_a_model_that_this_recipe_did_not_train_is_not_compared(made):
    given, task = made
    assert contamination.overlap_report(given, "model", task.rows("validation")) is None


def test_training_data_that_is_gone_is_said_to_be_unchecked(made, tmp_path):
    given, task = made
    rows = task.rows("validation")
    (tmp_path / "novels.jsonl").unlink()
    told = contamination.overlap_report(given, "mine", rows)
    assert "novels.jsonl" in told["unchecked"]
    assert "could not be checked" in contamination.overlap_warning("mine", "validation", told)


def test_little_overlap_is_no_warning():
    told = {"share": 0.05, "found": [], "seen": 5, "examples": 100}
    assert contamination.overlap_warning("a", "validation", told) is None
