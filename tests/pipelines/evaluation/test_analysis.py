"""What stands behind a score: parts of a benchmark, classes, calibration, mistakes and overlap."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from pipelines.core.errors import DataError, RecipeError
from pipelines.core.events import read_events
from pipelines.core.interfaces import Rows
from pipelines.core.load import loads
from pipelines.evaluation.analysis import by_value, check_named, classes, columns_of, cut, look_for_overlap, slices
from pipelines.tasks.base import resolve
from pipelines.tasks.predictions import ClassPredictions
from pipelines.tasks.scoring import score

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


TASK = resolve("glue/sst2", "glue/sst2")
SLICED = "name: a\nmodel: {architecture: {preset: bert-tiny}}\nstages:\n  - {stage: supervised, id: mine, task: {kind: classification, columns: [text], label: label, labels: [no, yes], train: train.csv, validation: dev.csv}}\n"


def said(examples=200, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(2, size=examples)
    logits = random.normal(size=(examples, 2)) + np.eye(2)[labels]
    texts = [" ".join(["word"] * int(count)) for count in random.integers(1, 40, examples)]
    return ClassPredictions(
        "glue/sst2",
        "validation",
        "",
        Rows(texts, None, labels.tolist(), list(range(examples))),
        logits.astype(np.float32),
    )


def test_parts_by_length_hold_every_example_once_and_are_scored_by_themselves():
    one = said()
    found = slices(one, TASK, score(TASK), {}, seed=1)
    lengths = np.array([len(text.split()) for text in one.rows.texts])
    right = one.logits.argmax(axis=1) == one.labels
    assert sum(each["examples"] for each in found) == 200
    for each in found:
        low, high = (int(number) for number in each["name"].removesuffix(" words").split(" – "))
        mine = (lengths >= low) & (lengths <= high)
        assert each["examples"] == mine.sum()
        assert 35 <= each["examples"] <= 65
        assert each["scores"]["accuracy"] == pytest.approx(right[mine].mean())
        assert each["intervals"]["accuracy"][0] <= each["scores"]["accuracy"] <= each["intervals"]["accuracy"][1]


def test_equal_numbers_are_never_cut_apart():
    assert cut(np.array([3, 3, 3, 3])) == []
    parts = cut(np.array([1] * 50 + [2] * 50))
    assert [(name, len(mine)) for name, mine in parts] == [("1", 50), ("2", 50)]
    assert sum(len(mine) for _, mine in cut(np.arange(103))) == 103


def test_a_column_has_a_part_for_each_value_and_one_for_the_rare():
    assert [(name, mine.tolist()) for name, mine in by_value(["b", "a", "b", None])] == [
        ("b", [0, 2]),
        ("(empty)", [3]),
        ("a", [1]),
    ]
    many = by_value([f"v{at % 40}" for at in range(200)] + ["v1"] * 50)
    assert len(many) == 20
    assert many[0][0] == "v1"
    assert many[-1][0] == "(other values)"
    assert sum(len(mine) for _, mine in many) == 250
    assert len(by_value([at / 7 for at in range(400)])) == 4


def test_classes_as_scikit_learn_counts_them():
    one = said()
    found = classes(one.scored_examples(TASK))
    predicted = one.logits.argmax(axis=1)
    assert found["counts"] == confusion_matrix(one.labels, predicted).tolist()
    reference = precision_recall_fscore_support(one.labels, predicted)
    assert [[each[key] for each in found["each"]] for key in ("precision", "recall", "f1", "examples")] == [
        pytest.approx(row) for row in reference
    ]
    assert found["names"] == ["negative", "positive"]


def test_a_named_column_is_read_from_the_rows_that_were_evaluated(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,yes\nb,no\n")
    (tmp_path / "dev.csv").write_text("text,label,domain\na,yes,books\nb,no,films\nc,no,books\n")
    task = loads(SLICED, folder=tmp_path).stages[0].resolved("mine")
    assert columns_of(task, "validation", [2, 1], ["domain"]) == {"domain": ["books", "films"]}
    check_named([task], ["domain"])
    with pytest.raises(
        DataError, match=r"'slices' names the column 'domian', but .* has text, label, domain. Did you mean 'domain'"
    ):
        check_named([task], ["domian"])


def test_each_part_is_correlated_by_itself():
    task = resolve("glue/stsb", "glue/stsb")
    rows = Rows(["a"] * 10 + ["a b c"] * 10, None, [2.0] * 10 + list(np.arange(10) / 2), list(range(20)))
    logits = np.arange(20, dtype=np.float32)[:, None]
    found = slices(ClassPredictions("glue/stsb", "validation", "", rows, logits), task, score(task), {}, seed=1)
    assert found[-1]["scores"]["pearson"] == pytest.approx(1.0)
    assert (
        found[0]["scores"]["pearson"] == 0.0
    )  # all of these have the same right number, which correlates with nothing
