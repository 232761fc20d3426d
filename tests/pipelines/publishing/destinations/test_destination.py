"""`to` picks its kind by its syntax; the marker, and checksums in the form of GNU coreutils, checked by coreutils."""

from __future__ import annotations

import io
import subprocess

import pytest

from pipelines.publishing.destinations.destination import (
    CHUNK,
    FORMAT,
    checksums_of,
    destination_of,
    differences,
    marker_bytes,
    marker_in,
    sha256_of_stream,
    write_sums,
)


@pytest.mark.parametrize(
    ("to", "kind", "location", "load_from"),
    [
        ("/srv/models/x", "Folder", "/srv/models/x", "/srv/models/x"),
        ("s3://bucket/deep/x/", "Url", "s3://bucket/deep/x", "x"),
        ("hub:ada/x", "Hub", "hub:ada/x", "ada/x"),
    ],
)
def test_kind_location_and_what_a_reader_types(to, kind, location, load_from):
    destination = destination_of(to)
    assert type(destination).__name__ == kind
    assert destination.location == location
    assert destination.load_from() == load_from


def test_a_relative_folder_is_relative_to_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    destination = destination_of("registry/x")
    assert destination.location == str(tmp_path / "registry/x")
    monkeypatch.chdir("/")
    assert destination.location == str(tmp_path / "registry/x")
    assert destination.load_from() == "registry/x"


def test_what_is_written_is_read():
    told = {"fingerprint": "f", "checksums": {"a": "1"}, "name": "é"}
    record = marker_in(marker_bytes(told, complete=False))
    assert record == {**told, "format": FORMAT, "complete": False}


def test_completeness_is_said_by_the_writer_only():
    record = marker_in(marker_bytes({"complete": True, "checksums": {}}, complete=False))
    assert record is not None
    assert record["complete"] is False


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"format": "finery publication 1"}',
        b'{"format": "other", "checksums": {}}',
        b"null",
    ],
)
def test_what_is_not_ours_is_none(content):
    assert marker_in(content) is None


ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-4, example of a one-block message


def test_the_digest_is_the_one_in_the_standard():
    assert sha256_of_stream(io.BytesIO(b"abc")) == ABC
    # NIST's long message: one million times the letter a, read in more than one piece when repeated
    assert (
        sha256_of_stream(io.BytesIO(b"a" * 1_000_000))
        == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
    )
    assert CHUNK > 1_000_000


def make(folder):
    for name, content in {
        "a.txt": b"abc",
        "base/deep/b.bin": b"\0" * (CHUNK + 1),
        "with space.md": "é".encode(),
        "publication.json": b"{}",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def test_sha256sum_agrees_and_notices_one_changed_byte(tmp_path):
    make(tmp_path)
    sums = write_sums(tmp_path)
    assert list(sums) == ["a.txt", "base/deep/b.bin", "with space.md", "SHA256SUMS"]
    assert sums["a.txt"] == ABC
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.count(": OK") == 3
    (tmp_path / "base/deep/b.bin").write_bytes(b"\0" * CHUNK + b"\1")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1
    assert differences(sums, checksums_of(tmp_path)) == ["base/deep/b.bin"]


def test_writing_twice_gives_the_same(tmp_path):
    make(tmp_path)
    assert write_sums(tmp_path) == write_sums(tmp_path)


def test_a_missing_file_is_a_difference_and_an_extra_one_is_none(tmp_path):
    assert differences({"a": "1", "b": "2", "c": "3"}, {"a": "1", "c": None, "d": "4"}) == ["b", "c"]
