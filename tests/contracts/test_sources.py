"""What every place that holds data sets must do."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import DataError
from pipelines.core.registry import SOURCES
from pipelines.data.sources import DataSource


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A data set that each place holds."""
    (tmp_path / "mirror" / "owner" / "set").mkdir(parents=True)
    for name in ("train", "test"):
        (tmp_path / "mirror" / "owner" / "set" / f"{name}.jsonl").write_text(f'{{"text": "{name}"}}\n')
    monkeypatch.setenv("FINERY_DATA", str(tmp_path / "mirror"))
    (tmp_path / "feedback").mkdir()
    (tmp_path / "feedback" / "revisions.jsonl").write_text('{"text": "train"}\n')
    monkeypatch.setattr("pipelines.data.stage_files._folders", {"feedback": tmp_path / "feedback"})
    return {
        "builtin": "builtin/python-docs",
        "mirror": "owner/set",
        "stage": "stage:feedback",
        "files": str(tmp_path / "mirror" / "owner" / "set"),
        "hub": "owner/elsewhere",
    }


@pytest.fixture(params=list(SOURCES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(kind: str, known: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> DataSource:
    if kind == "hub":  # what the Hub sends is tested on the wire, in test_hub.py
        import datasets

        rows = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": ["train"]})})
        monkeypatch.setattr(datasets, "load_dataset", lambda *arguments, **keywords: rows)
        monkeypatch.setattr(datasets, "get_dataset_split_names", lambda *arguments, **keywords: ["train"])
        monkeypatch.setattr("pipelines.data.hub.HubSource.revision", "abc123")
    found: DataSource | None = SOURCES.load(kind)(known[kind], None)
    assert found is not None
    return found


def test_every_place_is_part_of_this_test(known: dict[str, str]):
    assert set(known) == set(SOURCES)


def test_it_leaves_the_names_of_others_alone(kind: str, known: dict[str, str]):
    for other, path in known.items():
        if other in ("builtin", "files") and kind != other:
            assert SOURCES.load(kind)(path, None) is None or (kind, other) == ("hub", "builtin")


def test_it_says_where_it_looked(kind: str, known: dict[str, str]):
    looked: Any = import_module(SOURCES.module(kind)).looked
    places = looked(known[kind])
    assert places
    assert all(isinstance(place, str) for place in places)


def test_what_it_lists_can_be_loaded(source: DataSource):
    assert source.splits()
    for split in source.splits():
        rows = source.load(split)
        assert len(rows) > 0
        assert "text" in rows.column_names


def test_the_content_hash_is_the_same_each_time_and_differs_by_split(
    source: DataSource, kind: str, known: dict[str, str]
):
    hashes = [source.content_hash(split) for split in source.splits()]
    assert len(set(hashes)) == len(hashes)
    assert hashes == [SOURCES.load(kind)(known[kind], None).content_hash(split) for split in source.splits()]


def test_a_split_that_is_not_there_is_one_sentence_that_lists_those_that_are(source: DataSource):
    with pytest.raises(DataError) as caught:
        source.load("trains")
    assert "has no split 'trains'. Did you mean 'train'? Splits found: train" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_it_describes_itself(source: DataSource):
    assert source.describe()
    assert "\n" not in source.describe()
