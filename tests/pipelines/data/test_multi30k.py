"""Multi30k: the sentences that published results are trained and measured on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.core.registry import TASKS


@pytest.fixture
def data(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINERY_DATA", str(mirror))


@pytest.mark.parametrize(
    ("language", "first"),
    [
        ("de", "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."),
        ("fr", "Deux jeunes hommes blancs sont dehors près de buissons."),
        ("cs", "Dva mladí bílí muži jsou venku poblíž mnoha keřů."),
    ],
)
def test_it_has_the_sentences_of_the_paper(data: None, language: str, first: str):
    task = TASKS.load(f"multi30k/en-{language}")
    train, test = task.rows("train"), task.rows("test")
    assert (len(train), len(task.rows("validation")), len(test)) == (29_000, 1_014, 1_000)
    assert (train.texts[0], train.labels[0]) == ("Two young, White males are outside near many bushes.", first)
    assert test.texts[0] == "A man in an orange hat starring at something."
    assert task.evaluation_splits == {"": "test"}
