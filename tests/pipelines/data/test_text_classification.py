"""TREC, IMDb and AG's news: the rows, classes and splits that published results are measured on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.core.registry import TASKS


@pytest.fixture
def data(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINERY_DATA", str(mirror))


def test_trec_has_the_questions_and_both_levels_of_classes(data: None) -> None:
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


def test_imdb_has_as_many_good_reviews_as_bad_ones(data: None) -> None:
    task = TASKS.load("imdb")
    for split in ("train", "test"):
        labels = task.rows(split).labels
        assert (len(labels), sum(labels)) == (25_000, 12_500)
    assert task.head.labels == ("neg", "pos")


def test_the_first_reviews_are_good_and_bad_though_the_file_holds_all_bad_ones_first(data: None) -> None:
    task = TASKS.load("imdb")
    first = task.rows("train", 1_000)
    assert 440 <= sum(first.labels) <= 560  # three standard deviations and more
    source, split = task.places["train"].open("train")
    file = source.load(split)
    assert sum(file["label"][:12_500]) == 0
    assert [(file[row]["text"], file[row]["label"]) for row in first.index[:20]] == list(
        zip(first.texts[:20], first.labels[:20], strict=True)
    )
    assert sorted(task.rows("train").index) == list(range(25_000))
    assert task.rows("test", 5).index == task.rows("test").index[:5]


def test_ag_news_has_four_classes(data: None) -> None:
    task = TASKS.load("ag_news")
    assert set(task.rows("test").labels) == {0, 1, 2, 3}
    assert task.head.labels == ("World", "Sports", "Business", "Sci/Tech")


@pytest.mark.parametrize("name", ["trec/coarse", "trec/fine", "imdb", "ag_news"])
def test_the_class_names_are_those_of_the_data(name: str, data: None) -> None:
    task = TASKS.load(name)
    source, split = task.places["train"].open("train")
    assert tuple(source.load(split).features[task.label].names) == task.labels
