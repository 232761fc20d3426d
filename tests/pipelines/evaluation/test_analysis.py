import json
from types import SimpleNamespace

import numpy as np
import pytest

from pipelines.core.errors import DataError, RecipeError
from pipelines.core.events import read_events
from pipelines.core.load import loads
from pipelines.evaluation.analysis import look_for_overlap
from pipelines.tasks.predictions import ClassPredictions

RECIPE = """
name: t
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, id: mine, task: {kind: classification, columns: [text], label: label, labels: [no, yes], train: train.csv, validation: dev.csv}}
"""


@pytest.fixture
def files(tmp_path):
    lines = [
        f"{'good ' * (at % 7)}film {at},{'yes' if at % 3 else 'no'},{'books' if at % 2 else 'films'}"
        for at in range(48)
    ]
    (tmp_path / "train.csv").write_text("\n".join(["text,label,domain", *lines[:10]]) + "\n")
    (tmp_path / "dev.csv").write_text("\n".join(["text,label,domain", *lines[8:]]) + "\n")
    return tmp_path


def evaluated(files, context, classifier, more):
    made = loads(RECIPE + f"  - {{stage: evaluate{more}}}\n", folder=files)
    given = context(made, "evaluate", {"mine": classifier(2)})
    return made, given


def test_everything_behind_a_score_is_left_in_the_stage(files, context, classifier):
    made, given = evaluated(files, context, classifier, ", slices: [domain]")
    made.stage("evaluate").run(given)
    about = json.loads((given.folder / "details.json").read_text())["mine"]
    score = json.loads((given.folder / "metrics.json").read_text())["mine"]["accuracy"]
    domains = {each["name"]: each for each in about["slices"]["validation"] if each["by"] == "domain"}
    assert {name: each["examples"] for name, each in domains.items()} == {"books": 20, "films": 20}
    assert np.mean([each["scores"]["accuracy"] for each in domains.values()]) == pytest.approx(score)
    counts = np.array(about["classes"]["validation"]["counts"])
    assert counts.sum() == 40
    assert np.trace(counts) / 40 == pytest.approx(score)
    assert about["calibration"]["validation"]["accuracy"] == pytest.approx(score)
    assert sum(each["examples"] for each in about["calibration"]["validation"]["bins"]) == 40
    lines = [json.loads(line) for line in (given.folder / "mistakes.jsonl").read_text().splitlines()]
    assert len(lines) == about["mistakes"]["validation"]["wrong"] == round(40 * (1 - score))
    assert [each["confidence"] for each in lines] == sorted((each["confidence"] for each in lines), reverse=True)
    assert all(each["gold"] != each["said"] for each in lines)
    assert about["overlap"]["validation"]["exact"] == 2  # rows 8 and 9 stand in both files
    assert about["overlap"]["validation"]["clean"]["examples"] == 38


def test_a_column_that_is_not_there_is_refused_before_the_model_is_asked(files, context, classifier):
    made, given = evaluated(files, context, classifier, ", slices: [domian]")
    with pytest.raises(DataError, match=r"'slices' names the column 'domian'.*Did you mean 'domain'"):
        made.stage("evaluate").run(given)
    assert given.opened == []


@pytest.mark.parametrize(
    ("more", "said"), [(", slices: [domain, domain]", "'domain' is named twice"), (", slices: ['']", "slices")]
)
def test_columns_that_make_no_sense_are_mistakes(files, context, classifier, more, said):
    with pytest.raises(RecipeError, match=said):
        evaluated(files, context, classifier, more)


def test_what_was_asked_in_another_way_is_looked_through_too(files, context, classifier):
    made, given = evaluated(files, context, classifier, "")
    rows = made.stages[0].resolved("mine").rows("validation")
    said = ClassPredictions("mine/0-shot", "validation", "", rows, np.zeros((len(rows), 2), dtype=np.float32))
    details = {"mine/0-shot": {"model": "mine"}}
    doubts = look_for_overlap(given, [said, SimpleNamespace(benchmark="unknown", split="test")], details)
    assert details["mine/0-shot"]["overlap"]["validation"]["exact"] == 2
    assert doubts == []  # 2 of 40 are 5 %, not more
    assert [event for event in read_events(given.events.path) if event["event"] == "warning"] == []
