"""Data sets are looked for in each place in turn; files are told apart by their bytes."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pipelines.core import files
from pipelines.core.errors import DataError
from pipelines.data import sources
from pipelines.data.sources import FileSource, file_hash


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


def test_the_file_hash_is_that_of_sha256(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b"text\nhello\n")
    assert file_hash(tmp_path / "a.csv") == hashlib.sha256(b"text\nhello\n").hexdigest()


def test_the_hash_follows_the_bytes_not_the_place(tmp_path: Path):
    (tmp_path / "a.csv").write_text("text\nhello\n")
    (tmp_path / "copy.csv").write_text("text\nhello\n")
    (tmp_path / "b.csv").write_text("text\nworld\n")
    a, copy, b = (FileSource("it", {"train": (tmp_path / name,)}) for name in ("a.csv", "copy.csv", "b.csv"))
    assert a.content_hash("train") == copy.content_hash("train") != b.content_hash("train")


def test_the_order_and_the_format_of_files_count(tmp_path: Path):
    for name in ("a.csv", "b.csv", "a.tsv"):
        (tmp_path / name).write_text(f"text\n{name[0]}\n")
    hashes = {
        FileSource("it", {"train": tuple(tmp_path / name for name in names)}).content_hash("train")
        for names in (["a.csv"], ["a.tsv"], ["a.csv", "b.csv"], ["b.csv", "a.csv"])
    }
    assert len(hashes) == 4


def test_a_changed_file_has_a_new_hash_and_an_unchanged_one_is_not_read_again(tmp_path: Path):
    file = tmp_path / "a.csv"
    file.write_text("text\nhello\n")
    source = FileSource("it", {"train": (file,)})
    before = source.content_hash("train")
    about = file.stat()
    file.write_text("text\nworld\n")
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))  # as if nothing had happened: proves the memory is used
    assert source.content_hash("train") == before
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    assert source.content_hash("train") != before


def test_a_missing_split_names_those_that_exist(tmp_path: Path):
    source = FileSource("folder x", {"train": (tmp_path / "a.csv",), "test": (tmp_path / "b.csv",)})
    expected = r"folder x has no split 'trian'. Did you mean 'train'\? Splits found: train, test"
    for ask in (source.load, source.content_hash):
        with pytest.raises(DataError, match=expected):
            ask("trian")


def test_a_file_that_vanished_is_one_sentence(tmp_path: Path):
    with pytest.raises(DataError, match="could not be read: No such file"):
        FileSource("it", {"train": (tmp_path / "gone.csv",)}).content_hash("train")


def test_a_large_file_is_read_once_for_its_hash_by_all_processes(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sources, "REMEMBERED", 4)
    file = tmp_path / "a.csv"
    file.write_bytes(b"text\nhello\n")
    changed = time.time() - 10
    os.utime(file, (changed, changed))
    first = file_hash(file)

    def another_process() -> list[Any]:
        files._sha256.cache_clear()
        read: list[Any] = []
        monkeypatch.setattr(hashlib, "file_digest", lambda content, _: read.append(content.name) or hashlib.sha256())
        return read

    read = another_process()
    assert (file_hash(file), read) == (first, [])
    os.utime(file, (changed, changed + 5))  # a sign of a change: its bytes are looked at again
    assert file_hash(file) == hashlib.sha256().hexdigest()
    assert read == [str(file)]
    file.write_bytes(b"text\nworld\n")  # changed just now: a second change could bear the same time
    for _ in range(2):
        read = another_process()
        file_hash(file)
        assert read == [str(file)]
