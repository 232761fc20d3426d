"""The order of places, and the sentence when no place knows a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.core.errors import DataError
from pipelines.data import sources


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_embedded_sets_come_first_then_the_mirror_then_files_then_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("builtin/python-docs", "owner/set"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "train.jsonl").write_text('{"text": "mirror"}')
    monkeypatch.setenv("FINERY_DATA", str(tmp_path))
    kinds = [
        type(sources.find(path)).__name__
        for path in ("builtin/python-docs", "owner/set", str(tmp_path / "owner/set/train.jsonl"), "owner/other")
    ]
    assert kinds == ["PythonDocs", "FileSource", "FileSource", "HubSource"]


def test_a_name_that_nobody_knows_lists_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FINERY_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError) as caught:
        sources.find("owner/nothing").splits()
    message = str(caught.value)
    assert message.startswith("data set 'owner/nothing' was not found and HF_HUB_OFFLINE is set; looked in ")
    for place in (str(tmp_path / "owner" / "nothing"), str(tmp_path / "nothing"), "the Hub ("):
        assert place in message
    assert "\n" not in message


def test_what_can_be_no_name_at_all_is_refused_without_asking_anyone():
    with pytest.raises(DataError, match="data set 'a/b/c' was not found; looked in"):
        sources.find("a/b/c")


def test_missing_columns_and_splits_name_the_nearest(tmp_path: Path):
    with pytest.raises(DataError, match=r"x has no column 'texte'. Did you mean 'text'\? Columns found: id, text"):
        sources.check_columns(("id", "texte"), ["id", "text"], "x")
    with pytest.raises(DataError, match=r"x has no split 'dev'. Splits found: train"):
        sources.check_split("dev", ["train"], "x")
    sources.check_columns(("id", "text"), ["id", "text"], "x")
    sources.check_split("train", ["train"], "x")
