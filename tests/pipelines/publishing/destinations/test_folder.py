"""A folder is replaced in one step, or not at all."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from pipelines.core.errors import DiskFull, PublishError
from pipelines.publishing.destinations import folder as module
from pipelines.publishing.destinations.destination import write_sums
from pipelines.publishing.destinations.folder import Folder


def make(place: Path, text: str, fingerprint: str) -> dict:
    place.mkdir(parents=True)
    for number in range(5):
        (place / f"{number}.txt").write_text(text)
    return {"name": "t", "fingerprint": fingerprint, "checksums": write_sums(place)}


@pytest.fixture
def old(tmp_path):
    told = make(tmp_path / "old", "old", "a" * 32)
    Folder(str(tmp_path / "shelf/it")).push(tmp_path / "old", told)
    return told


@pytest.mark.parametrize("swaps", [True, False])
def test_a_reader_never_meets_a_mixture(tmp_path, old, monkeypatch, swaps):
    """With the exchange of names not even a missing file; with two renames a missing folder at worst."""
    if not swaps:
        monkeypatch.setattr(module, "_exchange", lambda one, other: False)
    elif not module._exchange(_folder(tmp_path / "x"), _folder(tmp_path / "y")):
        pytest.skip("this file system cannot exchange two names")
    told = make(tmp_path / "new", "new", "b" * 32)
    seen: list[set[str]] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                descriptor = os.open(tmp_path / "shelf/it", os.O_RDONLY)  # as a loader that opened the folder
            except FileNotFoundError:
                seen.append({"missing"})
                continue
            try:
                seen.append({_read(f"{number}.txt", descriptor) for number in range(5)})
            except FileNotFoundError:
                seen.append({"replaced while it was read"})
            finally:
                os.close(descriptor)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(6):
        Folder(str(tmp_path / "shelf/it")).push(tmp_path / "new", told)
        Folder(str(tmp_path / "shelf/it")).push(tmp_path / "old", old)
    done.set()
    reader.join()
    assert all(len(each) == 1 for each in seen)
    if swaps:
        assert {"missing"} not in seen
    assert os.listdir(tmp_path / "shelf") == ["it"]


def _read(name: str, folder: int) -> str:
    with open(name, opener=lambda path, flags: os.open(path, flags, dir_fd=folder)) as file:
        return file.read()


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("step", ["copytree", "_sync", "_take_the_place"])
def test_the_older_publication_survives_a_failure_at_any_step(tmp_path, old, monkeypatch, step):
    def fail(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.shutil if step == "copytree" else module, step, fail)
    told = make(tmp_path / "new", "new", "b" * 32)
    with pytest.raises(DiskFull, match="free some space"):
        Folder(str(tmp_path / "shelf/it")).push(tmp_path / "new", told)
    assert Folder(str(tmp_path / "shelf/it")).holds(old["checksums"])
    assert os.listdir(tmp_path / "shelf") == ["it"]


def test_the_second_rename_failing_brings_the_older_back(tmp_path, old, monkeypatch):
    monkeypatch.setattr(module, "_exchange", lambda one, other: False)
    rename, calls = os.rename, []

    def second_fails(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(module.os, "rename", second_fails)
    told = make(tmp_path / "new", "new", "b" * 32)
    with pytest.raises(PublishError, match="Input/output error"):
        Folder(str(tmp_path / "shelf/it")).push(tmp_path / "new", told)
    assert Folder(str(tmp_path / "shelf/it")).holds(old["checksums"])
    assert os.listdir(tmp_path / "shelf") == ["it"]


def test_what_a_killed_publication_left_is_cleared(tmp_path, old):
    told = make(tmp_path / "new", "new", "b" * 32)
    left = tmp_path / "shelf" / f".it.{'b' * 16}.incoming"
    left.mkdir()
    (left / "half.txt").write_text("half")
    Folder(str(tmp_path / "shelf/it")).push(tmp_path / "new", told)
    assert not (tmp_path / "shelf/it/half.txt").exists()
    assert os.listdir(tmp_path / "shelf") == ["it"]


def test_a_link_keeps_pointing_at_what_it_names(tmp_path, old):
    (tmp_path / "link").symlink_to(tmp_path / "shelf/it")
    told = make(tmp_path / "new", "new", "b" * 32)
    Folder(str(tmp_path / "link")).push(tmp_path / "new", told)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "shelf/it/0.txt").read_text() == "new"


def test_what_can_be_refused_is_refused_while_the_recipe_is_read(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "thesis").mkdir()
    assert Folder.mistake(str(tmp_path / "thesis")) is None  # empty
    (tmp_path / "thesis/chapter.txt").write_text("")
    assert "no Finery publication" in (Folder.mistake(str(tmp_path / "thesis")) or "")
    assert "is a file" in (Folder.mistake(str(tmp_path / "file")) or "")
    assert "root" in (Folder.mistake("/") or "")
    assert "empty" in (Folder.mistake("  ") or "")
    assert "control" in (Folder.mistake("a\0b") or "")
    assert Folder.mistake(str(tmp_path / "nowhere/yet")) is None


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    told = make(tmp_path / "new", "new", "b" * 32)
    with pytest.raises(PublishError, match="cannot be written"):
        Folder(str(tmp_path / "file/below")).push(tmp_path / "new", told)


def test_what_is_published_can_be_read_by_whom_the_umask_lets(tmp_path):
    told = make(tmp_path / "new", "new", "c" * 32)
    (tmp_path / "new/0.txt").chmod(0o600)  # as safetensors leaves weights
    before = os.umask(0o027)
    try:
        Folder(str(tmp_path / "shelf/it")).push(tmp_path / "new", told)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "shelf/it").iterdir()} == {0o640}
