"""What `finery serve` finds when it starts, and what it is asked while the disk is full: one sentence, never a trace, and nothing lost."""

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from pipelines.core.errors import CommandError, FineryError
from service import disk
from service.cli.__main__ import main
from service.cli.serve import _make_home, _opened, serve
from service.settings import read_settings
from service.store.database import _full
from service.store.errors import NoSpace


@pytest.fixture(autouse=True)
def _log():
    """What `serve` tells logging in this process is taken back: its stream is closed when the test ends."""
    loggers = [logging.getLogger(name) for name in (None, "service", "finery", "uvicorn.error")]
    before = [(each, each.level, list(each.handlers), list(each.filters)) for each in loggers]
    yield
    for each, level, handlers, filters in before:
        each.level, each.handlers, each.filters = level, handlers, filters


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--database-url", "mysql://finery:sesame@host/name"), "must begin with postgresql:// or sqlite:///"),
        (("--database-url", "nonsense"), "must begin with postgresql:// or sqlite:///"),
        (("--database-url", "sqlite:////proc/nowhere/finery.db"), "cannot be used"),
        (("--database-url", "postgresql://nobody@127.0.0.1:1/none"), "cannot open the database"),
        (("--executor", "docker"), "no Docker engine answers"),
    ],
)
def test_what_cannot_be_used_is_told_in_a_sentence(tmp_path, monkeypatch, capfd, arguments, sentence):
    monkeypatch.setenv("FINERY_DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert main(["serve", "--port", "0", "--home", str(tmp_path / "home"), *arguments]) != 0
    said = "".join(capfd.readouterr())
    assert sentence in said.replace("\n", " ")
    assert "Traceback" not in said
    assert "sesame" not in said


def test_a_file_that_is_no_database_is_told(tmp_path):
    (tmp_path / "finery.db").write_bytes(os.urandom(9000))
    kept = (tmp_path / "finery.db").read_bytes()
    with pytest.raises(CommandError, match="the database cannot be opened: file is not a database"):
        _opened(read_settings({}, home=tmp_path))
    assert (tmp_path / "finery.db").read_bytes() == kept


def test_a_port_in_use_is_told(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CommandError, match="choose another --host or --port"):
            serve("127.0.0.1", taken.getsockname()[1], tmp_path / "home", None, None, False)


@pytest.fixture
def reachable():
    """A folder that every user can come to."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def said_to_nobody(home):
    """What another user is told who takes the folder for a home."""
    out, inner = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
            _make_home(home)
        except CommandError as error:
            os.write(inner, str(error).encode())
        finally:
            os._exit(0)
    os.close(inner)
    os.waitpid(pid, 0)
    with os.fdopen(out) as file:
        return file.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
@pytest.mark.parametrize(
    ("mode", "sentence"), [(0o555, "it may not be written"), (0o777, "others can read"), (0o000, "cannot be used")]
)
def test_a_home_that_belongs_to_somebody_else_is_told(reachable, mode, sentence):
    home = reachable / "home"
    home.mkdir()
    home.chmod(mode)
    assert sentence in said_to_nobody(home)


def modes(folder, *names):
    return [oct((folder / name).stat().st_mode & 0o777) for name in names]


def test_a_home_that_others_could_read_is_closed(tmp_path, migrated_sqlite):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    shutil.copy(migrated_sqlite, home / "finery.db")
    for name in ("finery.db", "finery.db-wal", "finery.db-shm", "admin.token", "web.key"):
        (home / name).touch()
        (home / name).chmod(0o644)
    _make_home(home)
    assert modes(home, ".", "finery.db", "finery.db-wal", "finery.db-shm", "admin.token", "web.key") == [
        "0o700",
        *["0o600"] * 5,
    ]


def test_a_new_database_is_the_owners_alone_whatever_the_umask_is(tmp_path):
    before = os.umask(0)
    try:
        _make_home(tmp_path / "home")
        given = read_settings({}, home=tmp_path / "home")
        elsewhere = read_settings({}, home=tmp_path / "home", database_url=f"sqlite:///{tmp_path}/deep/own.db")
        for settings in (given, elsewhere):
            store = _opened(settings)
            store.ensure_project("a")
            place = store.url.database
            assert {os.stat(f"{place}{end}").st_mode & 0o777 for end in ("", "-wal", "-shm")} == {0o600}
            store.close()
    finally:
        os.umask(before)


def test_probes_tell_apart_that_it_lives_and_that_it_works(served, monkeypatch):
    assert [served.nobody.get(path).status_code for path in ("/livez", "/healthz", "/readyz")] == [200, 200, 200]
    monkeypatch.setattr(disk, "free", lambda home: 1 << 20)
    assert [served.nobody.get(path).status_code for path in ("/livez", "/healthz", "/readyz")] == [200, 200, 503]
    assert "has 1 MB left, less than its reserve of 256 MB" in served.nobody.get("/readyz").json()["detail"]
    monkeypatch.undo()
    monkeypatch.setattr(served.service, "stopped", lambda: ["scheduler"])
    assert "'scheduler' has ended" in served.nobody.get("/readyz").json()["detail"]
    monkeypatch.undo()
    monkeypatch.setattr(served.store, "writable", lambda **_: False)
    assert served.nobody.get("/readyz").json()["detail"] == "The database cannot be written."
    monkeypatch.undo()
    monkeypatch.setattr(served.store, "healthy", lambda: False)
    assert [served.nobody.get(path).status_code for path in ("/livez", "/healthz", "/readyz")] == [200, 503, 503]


def test_without_room_nothing_new_is_taken_and_all_else_goes_on(served, monkeypatch):
    job = served.job()
    monkeypatch.setattr(disk, "free", lambda home: 1 << 20)
    refused = [
        served.submitter.post("/api/v1/jobs", json={"recipe": "name: a"}),
        served.submitter.post("/api/v1/files", json={"filename": "a.csv"}),
        served.submitter.post("/api/v1/files/upload", params={"filename": "a.csv"}, content=b"a"),
        served.submitter.post("/v1/fine_tuning/jobs", json={"model": "scratch/bert-tiny", "training_file": "x"}),
        served.submitter.post("/v1/files", files={"file": b"{}"}, data={"purpose": "fine-tune"}),
    ]
    assert {answer.status_code for answer in refused} == {507}
    assert "an admin must free some space" in refused[0].json()["detail"]
    assert served.viewer.get(f"/api/v1/jobs/{job}").status_code == 200
    assert served.submitter.post(f"/api/v1/jobs/{job}/cancel").status_code == 200
    assert served.store.files(None) == []


def test_a_database_without_room_is_told_apart_from_one_that_is_away(served, monkeypatch):
    import sqlite3

    from sqlalchemy.exc import OperationalError

    full = OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))
    assert _full(full)
    assert not _full(OperationalError("INSERT", {}, sqlite3.OperationalError("database is locked")))

    def fails(*given, **named):
        raise full

    monkeypatch.setattr(served.store, "_once", fails)
    with pytest.raises(NoSpace) as raised:
        served.store.ensure_project("x")
    assert isinstance(raised.value, FineryError)
    monkeypatch.setattr(served.store, "ensure_project", lambda name: (_ for _ in ()).throw(raised.value))
    monkeypatch.undo()
    monkeypatch.setattr(served.store, "set_project", lambda *given, **named: (_ for _ in ()).throw(raised.value))
    answer = served.admin.put("/api/v1/projects/x", json={"weight": 2})
    assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")


def test_the_ballast_is_given_up_once_and_made_again(tmp_path, monkeypatch):
    room = [1 << 40]
    monkeypatch.setattr(disk, "free", lambda home: room[0])
    disk.keep_ballast(tmp_path, 0)
    assert (tmp_path / disk.BALLAST).stat().st_blocks * 512 >= disk.BALLAST_BYTES, (
        "the blocks are taken, not only promised"
    )
    assert not disk.drop_ballast(tmp_path), "not while there is room"
    room[0] = 100
    assert disk.drop_ballast(tmp_path)
    assert not disk.drop_ballast(tmp_path)
    disk.keep_ballast(tmp_path, 0)
    assert not (tmp_path / disk.BALLAST).exists(), "not before there is room again"


FULL_DISK = """
import http.client, json, os, signal, subprocess, sys, time
from pathlib import Path

home = Path(sys.argv[1]) / "home"

def begin():
    command = [sys.executable, "-m", "service.cli", "serve", "--port", "0", "--home", str(home), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "FINERY_DISK_RESERVE": str(1 << 20)})
    line = process.stdout.readline()
    assert line, "it did not start"
    return process, json.loads(line)["url"].rpartition("/")[2]

def ask(place, method, path, body=None):
    connection = http.client.HTTPConnection(place, timeout=60)
    token = (home / "admin.token").read_text().strip()
    connection.request(method, path, body and json.dumps(body), {"Authorization": f"Bearer {token}", "Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status

def fill():
    with open(Path(sys.argv[1]) / f"fill-{os.urandom(4).hex()}", "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass

recipe = "name: a\\nmodel: {architecture: {preset: bert-tiny}}\\nstages: [{stage: supervised, task: builtin/python-docs}]\\n"
found = {}
process, place = begin()
found["ballast"] = (home / ".ballast").exists()
process.send_signal(signal.SIGKILL if sys.argv[2] == "kill" else signal.SIGTERM)
process.wait()
fill()
process, place = begin()
try:
    found["started"] = [ask(place, "GET", path) for path in ("/livez", "/healthz", "/api/v1/jobs", "/api/v1/tokens")]
    fill()
    found["ready"] = ask(place, "GET", "/readyz")
    found["live"] = [ask(place, "GET", path) for path in ("/livez", "/healthz", "/api/v1/jobs")]
    found["submit"] = ask(place, "POST", "/api/v1/jobs", {"recipe": recipe})
    found["write"] = sorted({ask(place, "PUT", f"/api/v1/projects/p{number}", {"weight": 2}) for number in range(200)})[-1]
    for path in Path(sys.argv[1]).glob("fill-*"):
        path.unlink()
    time.sleep(1.1)  # whether the database can be written is told again for a second
    found["freed"] = [ask(place, "GET", "/readyz"), ask(place, "PUT", "/api/v1/projects/free", {"weight": 2}), ask(place, "POST", "/api/v1/validate", {"recipe": recipe})]
finally:
    process.send_signal(signal.SIGTERM)
    process.wait()
print(json.dumps(found))
"""


def may_mount():
    if shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True).returncode == 0
    )


@pytest.mark.long
@pytest.mark.skipif(not may_mount(), reason="needs a mount namespace of its own")
@pytest.mark.parametrize("ending", ["kill", "end"])
def test_a_server_comes_up_on_a_full_disk_and_serves_what_is_there(tmp_path, ending):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(FULL_DISK))
    (tmp_path / "disk").mkdir()
    command = (
        f"mount -t tmpfs -o size=40m none {tmp_path}/disk && exec {sys.executable} {script} {tmp_path}/disk {ending}"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {
        "ballast": True,
        "started": [200, 200, 200, 200],
        "ready": 503,
        "live": [200, 200, 200],
        "submit": 507,
        "write": 507,
        "freed": [200, 200, 200],
    }
