"""The Hub, as the real client meets it on the wire: refusals, patience, privacy, and a token that no message shows."""

from __future__ import annotations

import sys
import threading
import time
from itertools import product
from pathlib import Path

import pytest

from pipelines.core.errors import PublishError
from pipelines.publishing.destinations import hub as module
from pipelines.publishing.destinations.destination import write_sums
from pipelines.publishing.destinations.hub import Hub
from tests.covering import covering


@pytest.fixture
def told(tmp_path: Path) -> dict:
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "config.json").write_text("{}")
    return {"name": "tiny", "fingerprint": "f" * 32, "checksums": write_sums(folder)}


def push(tmp_path: Path, told: dict, private: bool = True) -> str:
    return Hub("hub:ada/tiny", private).push(tmp_path / "new", told)


def refusal(tmp_path: Path, told: dict, **named: bool) -> str:
    with pytest.raises(PublishError) as raised:
        push(tmp_path, told, **named)
    message = raised.value.message
    token = sys.modules["hub_stand_in"].TOKEN
    assert token not in message
    assert token not in repr(raised.value.__cause__)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("to", ["hub:ada/tiny", "hub:ada/tiny-2.0_x", "hub:A1/b"])
def test_names_that_the_hub_takes(to):
    assert Hub.mistake(to) is None


@pytest.mark.parametrize(
    "to",
    [
        "hub:",
        "hub:ada",
        "hub:ada/",
        "hub:/x",
        "hub:a/b/c",
        "hub:ada/ti--ny",
        "hub:ada/-x",
        "hub:ada/x.",
        "hub:ada/a b",
        "hub:ada/" + "x" * 97,
        "hub:ada/x.git",
    ],
)
def test_names_that_it_refuses(to):
    assert Hub.mistake(to) is not None
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    if to.count("/") == 1 and to not in ("hub:ada/", "hub:/x"):
        with pytest.raises(HFValidationError):  # the client's own opinion
            validate_repo_id(to.removeprefix("hub:"))


def test_all_files_come_in_one_commit_and_the_marker_in_the_next(hub, tmp_path, told):
    assert push(tmp_path, told) == "hub:ada/tiny"
    repository = hub.repositories["ada/tiny"]
    assert [set(names) for names in repository.commits[1:]] == [
        {*told["checksums"], "publication.json"},
        {"publication.json"},
    ]
    assert repository.files["model.safetensors"] == bytes(range(256)) * 40
    assert repository.large == {"model.safetensors"}
    assert any(line.startswith("PUT /lfs/") for line in hub.requests)
    assert "POST /api/lfs/verify" in hub.requests
    last_commit = max(n for n, line in enumerate(hub.requests) if "/commit/" in line)
    assert any("/tree/" in line for line in hub.requests[:last_commit])  # read back before the marker


@pytest.mark.parametrize("private", [True, False])
def test_the_repository_is_as_private_as_asked(hub, tmp_path, told, private):
    push(tmp_path, told, private)
    assert hub.repositories["ada/tiny"].private is private


def test_private_files_are_not_put_into_a_public_repository(hub, tmp_path, told):
    hub.repositories["ada/tiny"] = sys.modules["hub_stand_in"].Repository(private=False)
    assert "is public on the Hub" in refusal(tmp_path, told)
    assert set(hub.repositories["ada/tiny"].files) == {".gitattributes"}


def test_without_a_token_nothing_is_asked(hub, tmp_path, told, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    assert "set HF_TOKEN" in refusal(tmp_path, told)
    assert hub.requests == []


def test_a_token_in_the_clients_own_file_is_not_used(hub, tmp_path, told, monkeypatch):
    import huggingface_hub.constants as constants

    (tmp_path / "token").write_text(sys.modules["hub_stand_in"].TOKEN)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN")
    assert "set HF_TOKEN" in refusal(tmp_path, told)


def test_401(hub, tmp_path, told, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "does not accept the token in HF_TOKEN (401)" in refusal(tmp_path, told)


def test_403(hub, tmp_path, told):
    hub.refused_owners.add("ada")
    assert "may not write to 'ada/tiny' (403); use one with write access to ada" in refusal(tmp_path, told)


def test_403_at_the_commit(hub, tmp_path, told):
    hub.fail(r"POST .*/commit/", 403)
    assert "may not write to 'ada/tiny' (403)" in refusal(tmp_path, told)
    assert "publication.json" not in hub.repositories["ada/tiny"].files


def test_404_for_an_owner_that_is_not_there(hub, tmp_path, told):
    hub.fail(r"POST /api/repos/create", 404)
    assert "knows no 'ada/tiny'" in refusal(tmp_path, told)


WHERE = [r"repos/create", r"/commit/", r"/tree/", r"validate-yaml", r"GET /api/models/ada/tiny$"]


@pytest.mark.parametrize(("where", "status"), covering(product(WHERE, [429, 500, 503])))
def test_a_busy_hub_is_asked_again(hub, tmp_path, told, status, where, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # the client's own patience
    hub.fail(where, status)
    push(tmp_path, told)
    assert Hub("hub:ada/tiny").holds(told["checksums"])
    assert hub.failures == []


def test_a_broken_upload_is_tried_again(hub, tmp_path, told, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.fail(r"PUT /lfs/", 503, times=7)  # more than the client tries by itself
    push(tmp_path, told)
    assert Hub("hub:ada/tiny").holds(told["checksums"])


def test_the_time_that_the_hub_names_is_waited(hub, tmp_path, told, monkeypatch):
    waited: list[float] = []
    here, sleep = threading.get_ident(), time.sleep  # threads of other tests may sleep meanwhile
    monkeypatch.setattr(
        module.time, "sleep", lambda length: waited.append(length) if threading.get_ident() == here else sleep(length)
    )
    hub.fail(r"repos/create", 429, Retry_After="7")
    push(tmp_path, told)
    assert waited == [7.0]


@pytest.mark.parametrize(("status", "words"), [(429, "wait some minutes"), (503, "out of order (503)")])
def test_patience_ends(hub, tmp_path, told, status, words):
    hub.fail(r"repos/create", status, times=9)
    assert words in refusal(tmp_path, told)
    assert len(hub.failures) == 9 - (len(module.WAITS) + 1)


def test_a_refusal_is_not_repeated(hub, tmp_path, told):
    hub.refused_owners.add("ada")
    refusal(tmp_path, told)
    assert sum("repos/create" in line for line in hub.requests) == 1


def test_nobody_listening(hub, tmp_path, told, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "the Hub at http://127.0.0.1:9 cannot be reached" in refusal(tmp_path, told)


def test_offline_mode_is_named(hub, tmp_path, told, monkeypatch):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal(tmp_path, told)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_bytes_that_changed_on_the_way_are_noticed_and_not_marked_complete(hub, tmp_path, told, name):
    hub.corrupt = name
    assert f"'{name}' did not arrive unchanged" in refusal(tmp_path, told)
    marker = Hub("hub:ada/tiny").marker()
    assert marker is not None
    assert marker["complete"] is False


def test_what_the_hub_itself_puts_into_a_repository_is_no_obstacle(hub, tmp_path, told):
    repository = sys.modules["hub_stand_in"].Repository(private=True)
    repository.files |= {"README.md": b"# tiny", "LICENSE": b"mit"}
    hub.repositories["ada/tiny"] = repository
    push(tmp_path, told)
    assert repository.files["LICENSE"] == b"mit"
    assert repository.files["README.md"].startswith(b"---")
