"""The named tasks on the real data: what the papers and the files themselves say."""

from __future__ import annotations

import json

import pytest

from pipelines.core.errors import DataError
from pipelines.core.registry import TASKS


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
