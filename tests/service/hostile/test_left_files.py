"""What an attempt leaves is read as plain files of its own folder, or not at all."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.attempts import folders as reading
from service.attempts.folders import Folders, Unfit, led_to, open_regular, plain_files, read_regular
from service.attempts.publishing import place, publications
from service.web.models import read_card

MARK = "ab" * 16
SECRET = "the admin's token"


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    """Whoever opens a pipe as a file waits for ever."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("something waited for a pipe"))
    signal.alarm(20)
    yield
    signal.alarm(0)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "admin.token"
    path.parent.mkdir()
    path.write_text(SECRET)
    return path


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job" / "runs" / "tiny").mkdir(parents=True)
    return tmp_path / "job"


def a_link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def a_relative_link(path: Path, secret: Path) -> None:
    path.symlink_to(os.path.relpath(secret, path.parent))


def a_pipe(path: Path, secret: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path, secret: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # its name is bounded
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)
    os.chdir(here)


def a_device(path: Path, secret: Path) -> None:
    try:
        os.mknod(path, 0o20666, os.makedev(1, 5))  # zeros without end
    except PermissionError:
        path.symlink_to("/dev/zero")


def a_circle(path: Path, secret: Path) -> None:
    path.symlink_to(path.name)


ODD = (a_link, a_relative_link, a_pipe, a_socket, a_device, a_circle)
Odd = Callable[[Path, Path], None]


@pytest.mark.parametrize("odd", ODD)
def test_only_a_plain_file_is_opened(job: Path, secret: Path, odd: Odd) -> None:
    path = job / "runs" / "tiny" / "report.html"
    odd(path, secret)
    with pytest.raises(Unfit, match="no plain file"):
        open_regular(path, job)


def test_a_folder_on_the_way_that_is_a_link_is_not_followed(job: Path, secret: Path) -> None:
    (job / "runs" / "out").symlink_to(secret.parent)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        open_regular(job / "runs" / "out" / "admin.token", job)
    with pytest.raises((Unfit, ValueError)):
        open_regular(job / "runs" / ".." / ".." / "home" / "admin.token", job)
    with pytest.raises(ValueError, match="not in the subpath"):
        open_regular(secret, job)


def test_the_job_s_folder_itself_may_lie_behind_a_link_of_the_server(job: Path, tmp_path: Path) -> None:
    (job / "runs" / "x").write_text("y")
    (tmp_path / "linked").symlink_to(job)
    assert read_regular(tmp_path / "linked" / "runs" / "x", tmp_path / "linked", 10) == b"y"


def test_a_long_file_is_refused_before_it_is_read(job: Path) -> None:
    with open(job / "runs" / "big", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Unfit, match="longer than 1000 bytes"):
        read_regular(job / "runs" / "big", job, 1000)


def publish(job: Path, name: str = "my-model", **marker: object) -> Path:
    folder = job / "published" / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "manifest.json").write_text("{}")
    (folder / "publication.json").write_text(
        json.dumps({"complete": True, "fingerprint": MARK, "checksums": {}, **marker})
    )
    return folder


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("where", ["weights", "base/weights"])
def test_a_publication_with_anything_but_plain_files_is_not_taken(
    job: Path, secret: Path, tmp_path: Path, odd: Odd, where: str
) -> None:
    folder = publish(job)
    (folder / where).parent.mkdir(exist_ok=True)
    odd(folder / where, secret)
    [found] = publications(Folders(job, "tiny"))
    with pytest.raises(Unfit, match="no plain file"):
        place(found, tmp_path / "models", "acme")
    assert SECRET not in "".join(each.read_text() for each in (tmp_path / "models").rglob("*") if each.is_file())
    assert not list((tmp_path / "models").rglob(MARK))


def test_a_folder_in_a_publication_that_leads_out_is_not_followed(job: Path, secret: Path, tmp_path: Path) -> None:
    (publish(job) / "base").symlink_to(secret.parent)
    [found] = publications(Folders(job, "tiny"))
    with pytest.raises(OSError):
        place(found, tmp_path / "models", "acme")
    assert not [each for each in tmp_path.glob("models/**/*") if each.is_file()]


@pytest.mark.parametrize("level", ["published", "published/my-model"])
def test_publications_behind_a_link_are_none(job: Path, tmp_path: Path, level: str) -> None:
    other = tmp_path / "other"
    publish(other)
    (job / level).parent.mkdir(exist_ok=True)
    (job / level).symlink_to(other / level)
    assert list(publications(Folders(job, "tiny"))) == []


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("record", ["publication.json", "manifest.json", "recipe.yaml"])
def test_a_record_that_is_no_plain_file_says_nothing(job: Path, secret: Path, odd: Odd, record: str) -> None:
    folder = publish(job)
    (folder / record).unlink(missing_ok=True)
    odd(folder / record, secret)
    found = list(publications(Folders(job, "tiny")))
    assert (found == []) == (record == "publication.json")
    assert all((each.scores, each.parameters, each.base) == ({}, None, "") for each in found)


def test_a_file_with_a_second_name_is_not_taken(job: Path, secret: Path, tmp_path: Path) -> None:
    os.link(secret, publish(job) / "card.md")
    [found] = publications(Folders(job, "tiny"))
    with pytest.raises(Unfit, match=r"'card\.md' has another name somewhere else"):
        place(found, tmp_path / "models", "acme")


@pytest.mark.parametrize(
    "mark", ["../../../others/x", "", "..", "AB" * 16, "a" * 4000, 7, None, "abcdefgh/../x", ["a"]]
)
def test_a_fingerprint_is_a_hash_and_no_path(job: Path, mark: object) -> None:
    publish(job, fingerprint=mark)
    assert list(publications(Folders(job, "tiny"))) == []


@pytest.mark.parametrize("name", ["-rf", "..x", "a b", "ünï", "a\nb", "x" * 200])
def test_a_name_is_one_that_a_model_can_have(job: Path, name: str) -> None:
    publish(job, name)
    assert list(publications(Folders(job, "tiny"))) == []


def test_what_was_exchanged_after_it_was_proven_is_refused(job: Path, tmp_path: Path) -> None:
    folder = publish(job, checksums={"model.safetensors": "0" * 64})
    [found] = publications(Folders(job, "tiny"))
    with pytest.raises(Unfit, match="not what its checksum says"):
        place(found, tmp_path / "models", "acme")
    (folder / "publication.json").write_text(
        json.dumps({"complete": True, "fingerprint": MARK, "checksums": {"gone": "0" * 64}})
    )
    [found] = publications(Folders(job, "tiny"))
    with pytest.raises(Unfit, match=r"'gone' .* is missing"):
        place(found, tmp_path / "models", "acme")


def test_a_publication_is_the_service_s_own_afterwards(job: Path, tmp_path: Path) -> None:
    folder = publish(job)
    [found] = publications(Folders(job, "tiny"))
    path = place(found, tmp_path / "models", "acme")
    (folder / "model.safetensors").write_bytes(b"changed")
    assert (path / "model.safetensors").read_bytes() == b"weights"


def test_too_many_files_and_too_deep_folders_are_refused(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = publish(job)
    deep = folder
    for _ in range(reading.MOST_DEPTH + 2):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "x").touch()
    with pytest.raises(Unfit, match="deep in each other"):
        list(plain_files(folder, job))
    monkeypatch.setattr(reading, "MOST_FILES", 3)
    with pytest.raises(Unfit, match="more than 3 files"):
        list(plain_files(folder, job))


@pytest.mark.parametrize(
    "metrics",
    [
        {"all_parameters": 2**70},
        {"all_parameters": -1},
        {"all_parameters": True},
        {"glue/mrpc": {"f1": float("nan")}},
        {"glue/mrpc": {"f1": "1"}},
        {"glue/mrpc": {"f1": 10**400}},
        {"glue/mrpc": [1]},
        {"x" * 300: {"f1": 1.0}},
    ],
)
def test_numbers_that_no_database_takes_are_left_out(job: Path, metrics: object) -> None:
    folder = publish(job)
    (folder / "manifest.json").write_text(json.dumps({"stages": [{"stage": "evaluate", "metrics": metrics}]}))
    [found] = publications(Folders(job, "tiny"))
    assert [values for values in found.scores.values() if values] == []
    assert found.parameters is None


def test_json_without_an_end_says_nothing(job: Path) -> None:
    folder = publish(job)
    (folder / "manifest.json").write_text("[" * 100_000)
    [found] = publications(Folders(job, "tiny"))
    assert found.scores == {}
    (folder / "publication.json").write_text("[" * 100_000)
    assert list(publications(Folders(job, "tiny"))) == []


@pytest.mark.parametrize("odd", ODD)
def test_a_card_is_shown_only_as_a_plain_file(tmp_path: Path, secret: Path, odd: Odd) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    odd(folder / "README.md", secret)
    assert read_card(folder) is None


def test_a_link_of_a_run_leads_below_the_given_folders_or_nowhere(job: Path, secret: Path) -> None:
    link = job / "runs" / "tiny" / "stages"
    for target in (secret.parent, Path("/etc"), job / ".." / "home", Path("stages")):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert led_to(link, job / "cache") is None
    (job / "cache" / "stages").mkdir(parents=True)
    link.unlink()
    link.symlink_to(job / "cache" / "stages")
    assert led_to(link, job / "cache") == (job / "cache" / "stages").resolve()
