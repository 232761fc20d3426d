"""Users' own files by absolute path."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.core.errors import DataError
from pipelines.data import files


def test_a_file_is_one_split(tmp_path: Path):
    (tmp_path / "mine.csv").write_text("text,label\nhello,1\n")
    source = files.find(str(tmp_path / "mine.csv"), None)
    assert source is not None
    assert source.splits() == ["train"]
    assert source.load("train").to_list() == [{"text": "hello", "label": "1"}]
    assert source.describe() == str(tmp_path / "mine.csv")


def test_a_pattern_is_one_split_of_all_its_data_files_sorted(tmp_path: Path):
    for name in ("b.txt", "a.txt", "sub/c.txt", "d.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [row["text"] for row in files.find(str(tmp_path / "*"), None).load("train")] == ["a.txt", "b.txt"]  # type: ignore[union-attr]
    deep = files.find(str(tmp_path / "**" / "*.txt"), None)
    assert deep is not None
    assert [row["text"] for row in deep.load("train")] == ["a.txt", "b.txt", "sub/c.txt"]


def test_a_file_with_wildcards_in_its_name_is_found_as_it_is(tmp_path: Path):
    (tmp_path / "what[1].txt").write_text("hello")
    (tmp_path / "what1.txt").write_text("other")
    source = files.find(str(tmp_path / "what[1].txt"), None)
    assert source is not None
    assert source.load("train")[0]["text"] == "hello"


def test_a_folder_has_the_splits_of_its_names(tmp_path: Path):
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text(f"text\n{name}\n")
    source = files.find(str(tmp_path), None)
    assert source is not None
    assert source.splits() == ["train", "validation"]


def test_relative_paths_are_left_to_others():
    assert files.find("mine.csv", None) is None
    assert files.looked("mine.csv") == []


def test_what_is_not_there_is_said(tmp_path: Path):
    with pytest.raises(DataError, match=r"none.csv does not exist"):
        files.find(str(tmp_path / "none.csv"), None)
    with pytest.raises(DataError, match="does not exist"):
        files.find(str(tmp_path / "*.csv"), None)
    (tmp_path / "mine.csv").write_text("text\na\n")
    with pytest.raises(DataError, match="is a file and has no configuration 'x'; leave 'name' out"):
        files.find(str(tmp_path / "mine.csv"), "x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no data files"):
        files.find(str(tmp_path / "empty"), None)
