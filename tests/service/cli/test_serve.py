"""`finery serve`: one server a home, an admin's token at the first start, and a graceful end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from pipelines.core.errors import CommandError
from service.cli.serve import _listening, _only_server, first_token, serve
from service.settings import read_settings
from service.store.projects import matches, parts
from service.store.store import open_store


@pytest.fixture
def sqlite_store(tmp_path, migrated_sqlite):
    import shutil

    shutil.copy(migrated_sqlite, tmp_path / "finery.db")
    store = open_store(read_settings({}, home=tmp_path))
    yield store
    store.close()


def test_the_first_start_writes_an_admins_token_that_only_the_owner_reads(sqlite_store, tmp_path):
    path = first_token(sqlite_store, tmp_path)
    assert path == tmp_path / "admin.token"
    assert path.stat().st_mode & 0o777 == 0o600
    prefix, secret = parts(path.read_text().strip())
    kept = sqlite_store.token_by_prefix(prefix)
    assert (kept.role, matches(secret, kept.sha256)) == ("admin", True)
    assert first_token(sqlite_store, tmp_path) is None, "once"
    path.unlink()
    assert first_token(sqlite_store, tmp_path) is None, "whoever took the token away keeps the only one"


def test_a_start_that_was_killed_before_the_store_knew_the_token_is_mended(sqlite_store, tmp_path):
    text = "fin_0123456789ab_" + "a" * 43
    (tmp_path / "admin.token").write_text(text + "\n")
    first_token(sqlite_store, tmp_path)
    assert sqlite_store.token_by_prefix("0123456789ab").role == "admin"
    assert (tmp_path / "admin.token").read_text() == text + "\n"


def test_a_second_server_on_the_same_home_is_refused(tmp_path):
    with (
        _only_server(tmp_path),
        pytest.raises(CommandError, match=f"is in use by process {os.getpid()}"),
        _only_server(tmp_path),
    ):
        pass
    with _only_server(tmp_path):
        pass


def test_a_port_that_is_taken_is_told_and_nothing_is_made(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CommandError, match="choose another --host or --port"):
            serve("127.0.0.1", taken.getsockname()[1], tmp_path / "home", None, None, False)
    assert not (tmp_path / "home" / "finery.db").exists()
    with (
        pytest.raises(CommandError, match="cannot listen on nowhere"),
        _listening(read_settings({}, host="nowhere.invalid", port=0)),
    ):
        pass


@pytest.mark.parametrize(
    ("given", "sentence"),
    [({"port": 99999}, "--port is 99999"), ({"executor": "kubernetes"}, "--executor is 'kubernetes'")],
)
def test_wrong_settings_are_told_in_a_sentence(tmp_path, given, sentence):
    with pytest.raises(CommandError, match=sentence):
        serve(None, given.get("port"), tmp_path, None, given.get("executor"), False)


@pytest.mark.long
def test_the_command_serves_and_ends_with_a_signal(tmp_path):
    command = [sys.executable, "-m", "service.cli", "serve", "--home", str(tmp_path / "home"), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            said = json.loads(server.stdout.readline())
            with urllib.request.urlopen(f"{said['url']}/healthz", timeout=20) as answer:
                assert json.load(answer)["status"] == "ok"
            token = (tmp_path / "home" / "admin.token").read_text().strip()
            request = urllib.request.Request(f"{said['url']}/api/v1/me", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert json.load(answer)["role"] == "admin"
            second = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert second.returncode == 2
            assert f"in use by process {server.pid}" in second.stderr
            begun = time.monotonic()
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
            assert time.monotonic() - begun < 15
        finally:
            server.kill()
