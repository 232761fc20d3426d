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
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A data set that each place holds."""
    monkeypatch.setenv("FINERY_DATA", str(tmp_path / "mirror"))
    monkeypatch.setattr("pipelines.data.stage_files._folders", {})
    return {kind: import_module(SOURCES.module(kind)).example(tmp_path / kind) for kind in SOURCES}


@pytest.fixture(params=list(SOURCES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(kind: str, names: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> DataSource:
    if kind == "hub":  # what the Hub sends is tested on the wire, in test_hub.py
        import datasets

        rows = datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": ["train"]})})
        monkeypatch.setattr(datasets, "load_dataset", lambda *arguments, **keywords: rows)
        monkeypatch.setattr(datasets, "get_dataset_split_names", lambda *arguments, **keywords: ["train"])
        monkeypatch.setattr("pipelines.data.hub.HubSource.revision", "abc123")
    source: DataSource | None = SOURCES.load(kind)(names[kind], None)
    assert source is not None
    return source


def test_it_leaves_the_names_of_others_alone(kind: str, names: dict[str, str]):
    for other, path in names.items():
        if other in ("builtin", "files") and kind != other:
            assert SOURCES.load(kind)(path, None) is None or (kind, other) == ("hub", "builtin")


def test_it_says_where_it_looked(kind: str, names: dict[str, str]):
    looked: Any = import_module(SOURCES.module(kind)).looked
    places = looked(names[kind])
    assert places
    assert all(isinstance(place, str) for place in places)


def test_what_it_lists_can_be_loaded(source: DataSource):
    assert source.splits()
    for split in source.splits():
        rows = source.load(split)
        assert len(rows) > 0
        assert "text" in rows.column_names


def test_the_content_hash_is_the_same_each_time_and_differs_by_split(
    source: DataSource, kind: str, names: dict[str, str]
):
    hashes = [source.content_hash(split) for split in source.splits()]
    assert len(set(hashes)) == len(hashes)
    assert hashes == [SOURCES.load(kind)(names[kind], None).content_hash(split) for split in source.splits()]


def test_a_split_that_is_not_there_is_one_sentence_that_lists_those_that_are(source: DataSource):
    with pytest.raises(DataError) as caught:
        source.load("trains")
    assert "has no split 'trains'. Did you mean 'train'? Splits found: train" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_it_describes_itself(source: DataSource):
    assert source.describe()
    assert "\n" not in source.describe()
