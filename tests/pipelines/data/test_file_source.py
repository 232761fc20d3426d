"""A source made of files: its hash follows the bytes and nothing else."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from pipelines.core.errors import DataError
from pipelines.data.sources import FileSource, file_hash


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
