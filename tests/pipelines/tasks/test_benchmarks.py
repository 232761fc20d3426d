"""Named benchmarks against their papers, and against the real files."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import DataError
from pipelines.core.registry import TASKS

GLUE = {name: TASKS.load(name) for name in TASKS if name.startswith("glue/")}

METRICS = {
    "cola": ("matthews_correlation",), "sst2": ("accuracy",), "mrpc": ("accuracy", "f1"), "stsb": ("pearson", "spearmanr"),
    "qqp": ("accuracy", "f1"), "mnli": ("accuracy",), "qnli": ("accuracy",), "rte": ("accuracy",), "wnli": ("accuracy",),
    "ax": ("matthews_correlation",),
}  # fmt: skip
"""Table 1 of the paper (Pearson and Spearman as the benchmark's site has them); section 4 for the diagnostics set."""

COUNTS = {
    "cola": (8551, 1043),
    "sst2": (67349, 872),
    "mrpc": (3668, 408),
    "stsb": (5749, 1500),
    "rte": (2490, 277),
    "wnli": (635, 71),
}
"""Rows of the sets that the mirror holds complete."""

PRESENT = ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]


@pytest.fixture(autouse=True)
def real(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINERY_DATA", str(mirror))


def test_the_table_has_the_papers_tasks_and_metrics():
    assert {name: task.metrics for name, task in GLUE.items()} == {
        f"glue/{name}": each for name, each in METRICS.items()
    }


@pytest.mark.parametrize("name", PRESENT)
def test_columns_and_classes_are_those_of_the_files(name: str):
    task = GLUE[f"glue/{name}"]
    source, split = task.places["train"].open("train")
    data = source.load(split)
    assert list(data.column_names) == [*task.columns, "label", "idx"]
    assert tuple(getattr(data.features["label"], "names", ())) == task.head.labels


@pytest.mark.parametrize("name", PRESENT)
def test_rows_are_those_of_the_files(name: str):
    task = GLUE[f"glue/{name}"]
    counts = {}
    for split in ("train", *task.evaluation_splits.values()):
        source, inner = task.places[split].open(split)
        data, rows = source.load(inner), task.rows(split)
        counts[split] = len(rows)
        assert list(rows.texts) == data[task.columns[0]][:]
        assert rows.pairs is None if len(task.columns) == 1 else list(rows.pairs or ()) == data[task.columns[1]][:]
        assert rows.labels == data["label"][:]
        assert set(rows.labels) == set(range(len(task.head.labels))) or name == "stsb"
    if name in COUNTS:
        assert (counts["train"], counts["validation"]) == COUNTS[name]


@pytest.mark.parametrize("name", ["cola", "sst2", "stsb", "qnli", "rte", "wnli"])
def test_hidden_labels_are_none(name: str):
    assert GLUE[f"glue/{name}"].rows("test").labels is None


def test_public_test_labels_are_kept():
    assert set(GLUE["glue/mrpc"].rows("test").labels or ()) == {0, 1}


def test_mnli_is_scored_on_both_of_its_validation_splits():
    task = GLUE["glue/mnli"]
    assert task.evaluation_splits == {"": "validation_matched", "_mm": "validation_mismatched"}
    assert set(task.content()) == {"train", "validation_matched", "validation_mismatched"}
    assert task.rows("validation_matched").texts != task.rows("validation_mismatched").texts


def test_the_diagnostics_set_is_asked_of_mnlis_model():
    task = GLUE["glue/ax"]
    assert task.trained_by == "glue/mnli"
    assert task.head == GLUE["glue/mnli"].head
    assert task.evaluation_splits == {"": "test"}
    with pytest.raises(DataError, match="task 'glue/ax' has no training rows; it is asked of 'glue/mnli'"):
        task.rows("train")


def test_scores_of_stsb_are_numbers_from_0_to_5():
    labels = GLUE["glue/stsb"].rows("train").labels
    assert labels is not None
    assert (min(labels), max(labels)) == (0.0, 5.0)
    assert all(isinstance(label, float) for label in labels)


def test_the_diagnostics_rows_have_no_public_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "glue" / "ax").mkdir(parents=True)
    row = '{"premise": "A.", "hypothesis": "B.", "label": -1, "idx": 0}\n'
    (tmp_path / "glue" / "ax" / "test.jsonl").write_text(row * 3)
    monkeypatch.setenv("FINERY_DATA", str(tmp_path))
    rows = GLUE["glue/ax"].rows("test")
    assert (len(rows), rows.labels, list(rows.index)) == (3, None, [0, 1, 2])


@pytest.fixture(autouse=True)
def data(mirror, monkeypatch):
    monkeypatch.setenv("FINERY_DATA", str(mirror))


def test_squad_has_its_10570_questions_and_every_answer_stands_in_its_context():
    rows = TASKS.load("squad").rows("validation")
    assert len(rows) == 10_570  # Rajpurkar et al. 2016, table 1: 10,570 in the development set
    assert all(answers for answers in rows.labels)
    assert all(text in context for answers, context in zip(rows.labels, rows.pairs, strict=True) for text in answers)
    train = TASKS.load("squad").rows("train", 500)
    for context, texts, starts in zip(train.pairs, train.labels, train.starts, strict=True):
        assert [context[start : start + len(text)] for text, start in zip(texts, starts, strict=True)] == list(texts)


def test_squad_v2_has_5945_questions_without_an_answer():
    rows = TASKS.load("squad_v2").rows("validation")
    assert len(rows) == 11_873  # Rajpurkar et al. 2018, table 2
    assert sum(not answers for answers in rows.labels) == 5_945
    with pytest.raises(DataError, match="has no split 'train'"):
        TASKS.load("squad_v2").rows("train")


def test_predictions_equal_to_the_first_answers_are_perfect():
    from pipelines.metrics.squad import Squad, SquadV2

    for name, metric in (("squad", Squad()), ("squad_v2", SquadV2())):
        labels = TASKS.load(name).rows("validation", 2_000).labels
        assert metric.compute([answers[0] if answers else "" for answers in labels], labels) == {
            "exact_match": 100.0,
            "f1": 100.0,
        }


@pytest.mark.parametrize(("name", "questions"), [("race/middle", 1_436), ("race/high", 3_451), ("race/all", 4_887)])
def test_race_has_its_questions_with_four_options_each(name, questions):
    rows = TASKS.load(name).rows("validation")
    assert len(rows) == questions  # Lai et al. 2017, table 2: development sets
    assert rows.choices == 4
    assert set(rows.labels) == {0, 1, 2, 3}


def test_race_all_is_both_schools():
    both = [
        json.dumps([list(rows.texts), list(rows.labels)])
        for rows in (TASKS.load(f"race/{name}").rows("validation") for name in ("high", "middle"))
    ]
    every = TASKS.load("race/all").rows("validation")
    count = len(TASKS.load("race/high").rows("validation"))
    parts = [slice(0, count), slice(count, None)]
    assert sorted(json.dumps([list(every.texts)[part], list(every.labels)[part]]) for part in parts) == sorted(both)


ALPACA = TASKS.load("alpaca")
GSM8K = TASKS.load("gsm8k")
SELF_INSTRUCT_SEED = TASKS.load("self_instruct_seed")


@pytest.fixture(autouse=True)
def from_the_mirror(mirror, monkeypatch):
    monkeypatch.setenv("FINERY_DATA", str(mirror))


def test_alpaca_holds_a_tenth_out_and_leaves_its_empty_outputs_out():
    train, held_out = ALPACA.rows("train"), ALPACA.rows("validation")
    assert len(train) + len(held_out) == 4_998  # of 5,000 rows, two have no output
    assert len(held_out) == 499  # a tenth of 5,000, one of which has no output
    assert not set(train.index) & set(held_out.index)


def test_the_seed_tasks_of_self_instruct():
    assert len(SELF_INSTRUCT_SEED.rows("train")) + len(SELF_INSTRUCT_SEED.rows("validation")) == 175


def test_every_reference_of_gsm8k_has_its_number():
    rows = GSM8K.rows("test")
    assert len(rows) == 1_319
    numbers = GSM8K.graded(rows.labels)
    assert numbers[:3] == ["18", "3", "70000"]  # as the file has them
    assert all(float(each) == float(each) for each in numbers)


@pytest.fixture
def classification_data(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINERY_DATA", str(mirror))


def test_trec_has_the_questions_and_both_levels_of_classes(classification_data: None) -> None:
    coarse, fine = TASKS.load("trec/coarse"), TASKS.load("trec/fine")
    for task, classes in ((coarse, 6), (fine, 50)):
        assert (len(task.rows("train")), len(task.rows("test"))) == (5_452, 500)
        assert len(task.head.labels) == classes
        assert task.evaluation_splits == {"": "test"}
    first = coarse.rows("train", 1)
    assert first.texts[0] == "How did serfdom develop in and then leave Russia ?"
    assert coarse.head.labels[first.labels[0]] == "DESC"
    rows = fine.rows("train")
    assert fine.head.labels[rows.labels[0]] == "DESC:manner"
    above = [fine.head.labels[label].partition(":")[0] for label in rows.labels]
    assert above == [coarse.head.labels[label] for label in coarse.rows("train").labels]


@cache
def reviews(split: str) -> Any:
    """25,000 texts, read once."""
    return TASKS.load("imdb").rows(split)


def test_imdb_has_as_many_good_reviews_as_bad_ones(classification_data: None) -> None:
    task = TASKS.load("imdb")
    for split in ("train", "test"):
        labels = reviews(split).labels
        assert (len(labels), sum(labels)) == (25_000, 12_500)
    assert task.head.labels == ("neg", "pos")


def test_the_first_reviews_are_good_and_bad_though_the_file_holds_all_bad_ones_first(
    classification_data: None,
) -> None:
    task = TASKS.load("imdb")
    first = task.rows("train", 1_000)
    assert 440 <= sum(first.labels) <= 560  # three standard deviations and more
    source, split = task.places["train"].open("train")
    file = source.load(split)
    assert sum(file["label"][:12_500]) == 0
    assert [(file[row]["text"], file[row]["label"]) for row in first.index[:20]] == list(
        zip(first.texts[:20], first.labels[:20], strict=True)
    )
    assert sorted(reviews("train").index) == list(range(25_000))
    assert task.rows("test", 5).index == reviews("test").index[:5]


def test_ag_news_has_four_classes(classification_data: None) -> None:
    task = TASKS.load("ag_news")
    assert set(task.rows("test").labels) == {0, 1, 2, 3}
    assert task.head.labels == ("World", "Sports", "Business", "Sci/Tech")


@pytest.mark.parametrize("name", ["trec/coarse", "trec/fine", "imdb", "ag_news"])
def test_the_class_names_are_those_of_the_data(name: str, classification_data: None) -> None:
    task = TASKS.load(name)
    source, split = task.places["train"].open("train")
    assert tuple(source.load(split).features[task.label].names) == task.labels


@pytest.fixture
def translations(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINERY_DATA", str(mirror))


@pytest.mark.parametrize(
    ("language", "first"),
    [
        ("de", "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."),
        ("fr", "Deux jeunes hommes blancs sont dehors près de buissons."),
        ("cs", "Dva mladí bílí muži jsou venku poblíž mnoha keřů."),
    ],
)
def test_it_has_the_sentences_of_the_paper(translations: None, language: str, first: str):
    task = TASKS.load(f"multi30k/en-{language}")
    train, test = task.rows("train"), task.rows("test")
    assert (len(train), len(task.rows("validation")), len(test)) == (29_000, 1_014, 1_000)
    assert (train.texts[0], train.labels[0]) == ("Two young, White males are outside near many bushes.", first)
    assert test.texts[0] == "A man in an orange hat starring at something."
    assert task.evaluation_splits == {"": "test"}
