"""fsspec URLs: what may be written, and what a failing store leads to."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipelines.core.errors import PublishError
from pipelines.publishing.destinations.destination import marker_in, write_sums
from pipelines.publishing.destinations.url import Url


@pytest.mark.parametrize(
    "to", ["s3://bucket/name", "gs://bucket/name", "memory://x", "file:///tmp/x", "az://c/x", "sftp://host/x"]
)
def test_places_that_can_be_written_are_allowed(to):
    assert Url.mistake(to) is None


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("memroy://bucket/x", "Did you mean 'memory'?"),
        ("hf://ada/x", "hub:ada/x"),
        ("https://example.org/x", "cannot be written to"),
        ("s3://", "names no folder"),
        ("memory:///", "names no folder"),
        ("s3://key:secret@bucket/x", "password"),
        ("simplecache::s3://bucket/x", "unknown protocol"),
    ],
)
def test_others_are_mistakes(to, words):
    mistake = Url.mistake(to)
    assert mistake is not None
    assert words in mistake
    assert "secret" not in mistake


def make(folder: Path) -> dict:
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    (folder / "b.txt").write_text("b")
    return {"name": "t", "fingerprint": "f" * 32, "checksums": write_sums(folder)}


def test_a_file_url_is_a_folder(tmp_path):
    told = make(tmp_path / "new")
    Url(f"file://{tmp_path}/shelf/it").push(tmp_path / "new", told)
    assert (tmp_path / "shelf/it/a.txt").read_text() == "a"
    assert marker_in((tmp_path / "shelf/it/publication.json").read_bytes())["complete"] is True


def test_an_upload_that_breaks_says_so_and_leaves_the_marker_incomplete(tmp_path, monkeypatch):
    told = make(tmp_path / "new")
    put_file = MemoryFileSystem.put_file

    def breaks(self, source, target, **named):
        if target.endswith("b.txt"):
            raise ConnectionResetError("the peer is gone\nand a trace")
        return put_file(self, source, target, **named)

    monkeypatch.setattr(MemoryFileSystem, "put_file", breaks)
    with pytest.raises(PublishError) as raised:
        Url("memory://broken/it").push(tmp_path / "new", told)
    assert "cannot be written to (ConnectionResetError: the peer is gone); check the URL" in raised.value.message
    record = Url("memory://broken/it").marker()
    assert record is not None
    assert record["complete"] is False


def test_the_marker_is_the_last_thing_written(tmp_path, monkeypatch):
    told = make(tmp_path / "new")
    written: list[tuple[str, bytes | None]] = []
    put_file, pipe_file = MemoryFileSystem.put_file, MemoryFileSystem.pipe_file

    def put(self, source, target, **named):
        written.append((target.rpartition("/")[2], None))
        return put_file(self, source, target, **named)

    def pipe(self, target, value, **named):
        written.append((target.rpartition("/")[2], value))
        return pipe_file(self, target, value, **named)

    monkeypatch.setattr(MemoryFileSystem, "put_file", put)
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe)
    Url("memory://order/it").push(tmp_path / "new", told)
    assert [name for name, _ in written] == ["publication.json", "a.txt", "b.txt", "SHA256SUMS", "publication.json"]
    assert [b'"complete": true' in value for name, value in written if value is not None] == [False, True]


def test_a_protocol_whose_package_is_missing_names_the_package(tmp_path):
    pytest.importorskip("fsspec")
    told = make(tmp_path / "new")
    try:
        import s3fs  # noqa: F401
    except ImportError:
        with pytest.raises(PublishError, match="s3fs"):
            Url("s3://bucket/it").push(tmp_path / "new", told)


def test_nothing_there_holds_nothing():
    assert Url("memory://nowhere").marker() is None
    assert not Url("memory://nowhere").holds({"a": "1"})
    assert fsspec.filesystem("memory").ls("/") is not None
