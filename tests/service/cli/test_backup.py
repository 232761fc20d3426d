"""One archive of a service that goes on working, and a home made of it that goes on where the archive was made."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelines.core.errors import CommandError
from service.cli.backup import backup
from service.cli.restore import FENCES, restore
from service.cli.serve import first_token
from service.jobs.job import Host, HostShare, JobRequest
from service.jobs.states import Reason, State
from service.settings import read_settings
from service.store.store import open_store
from service.store.tables import metadata
from tests.covering import covering
from tests.service.chaos.recipes import TINY
from tests.service.databases import fresh_postgresql, missing
from tests.service.executors.worlds import until

SERVER = Path(__file__).parents[1] / "chaos" / "server.py"
BOTH = ("sqlite", "postgresql")
OTHER_WAY_LONG = pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True
)
"""What is kept on one database comes back on the other."""


@pytest.fixture(autouse=True)
def _stages_in_the_home(monkeypatch):
    monkeypatch.delenv("FINERY_HOME", raising=False)


@contextmanager
def database(kind):
    """The URL of an empty database; empty for SQLite in the home."""
    if kind == "sqlite":
        yield ""
        return
    reason = missing()
    if reason:
        pytest.skip(reason)
    with fresh_postgresql() as url:
        yield url


@pytest.fixture(params=BOTH)
def url(request):
    with database(request.param) as found:
        yield found


def seeded(home, url):
    """A service with something in every table and every folder; its store."""
    settings = read_settings({}, home=home, database_url=url)
    home.mkdir(mode=0o700)
    store = open_store(settings)
    first_token(store, home)
    (home / "web.key").write_bytes(b"k" * 32)
    (home / "secrets" / "p").mkdir(parents=True)
    (home / "secrets" / "p" / "HF_TOKEN").write_text("hf_x")
    file = store.create_file("p", "train.jsonl", "data")
    (home / "files" / "p").mkdir(parents=True)
    (home / "files" / "p" / f"{file.id}.jsonl").write_text("{}\n")
    store.complete_file(file.id, "0" * 64, 3)
    part = store.create_file("p", "half.csv", "data")
    (home / "files" / "p" / f"{part.id}.csv.part").write_text("a,b")
    store.report_host(Host("here"))
    done = store.submit(JobRequest("name: é\n", "p", name="done"))[0]
    running = store.submit(JobRequest("name: r\n", "p", name="running"))[0]
    for job in (done, running):
        store.start(job.id, (HostShare("here"),), executor="local", holder="old", lease_seconds=30)
    attempt = store.attempts(done.id)[0]
    store.record_stage(attempt.id, attempt.fencing, "evaluate", metrics={"glue/mrpc": {"f1": 0.5}}, with_scores=True)
    stage = home / "cache" / "stages" / "abc"
    stage.mkdir(parents=True)
    (stage / "model.safetensors").write_bytes(b"w" * 5000)
    run = home / "jobs" / running.id / "runs" / "running"
    (run / "stages").mkdir(parents=True)
    (run / "stages" / "01-sst2").symlink_to(stage)
    (run / "recipe.yaml").write_text("name: r\n")
    (run / "stages" / "02-sst2").symlink_to("/etc")
    secrets = home / "jobs" / running.id / "attempts" / "a" / "secrets"
    secrets.mkdir(parents=True)
    (secrets / "HF_TOKEN").write_text("hf_x")
    model = home / "models" / "p" / "m" / "f"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"m" * 5000)
    copy = home / "jobs" / done.id / "published" / "m"
    copy.mkdir(parents=True)
    os.link(model / "model.safetensors", copy / "model.safetensors")
    store.publish_model(attempt.id, attempt.fencing, name="m", fingerprint="f", path=str(model))
    from service.jobs.states import Ending, Move

    store.end_attempt(attempt.id, attempt.fencing, Ending(Move.SUCCEED))
    return settings, store, done, running


def rows(store):
    """{table: rows} without the trail, which grows by what is done."""
    with store.engine.connect() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(table.select())))
            for table in metadata.sorted_tables
            if table.name != "audit"
        }


def files(home):
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and not path.is_symlink() and "finery.db" not in path.name
    }


def kept(url, home, target, **options):
    assert backup(target, home, url or None, options.get("runs", True), options.get("stages", True), True) == 0


@pytest.mark.parametrize(
    ("url", "to", "name"),
    covering([(one, to, name) for one in BOTH for to in BOTH[::-1] for name in ("b.tar", "b.tar.gz")]),
    indirect=["url"],
)
def test_a_home_comes_back_with_every_row_and_file(url, to, name, tmp_path, capsys):
    """From either database to either, in another folder: what ran is given back, no lease or token of old counts."""
    home, target = tmp_path / "home", tmp_path / name
    _, store, done, running = seeded(home, url)
    before, trail = rows(store), len(store.audit(limit=500))
    kept(url, home, target)
    told = json.loads(capsys.readouterr().out)
    assert told["vanished"] == []
    assert target.stat().st_mode & 0o777 == 0o600
    assert store.audit(limit=1)[0].action == "backup.create"
    assert store.audit(limit=1)[0].actor == "console"
    held, theirs, found = store.lease(running.id).fencing, store.token_by_prefix, files(home)
    tokens = [token for token in store.tokens() if theirs(token.prefix)]
    store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "home"]), "nothing lies about"
    with database(to) as other:
        new = tmp_path / "new"
        assert restore(target, new, other or None, True) == 0
        assert new.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o077 for path in new.rglob("*") if not path.is_symlink()} <= {
            0,
            0o044,
        }  # the database's own mode
        again = open_store(read_settings({}, home=new, database_url=other))
        after = rows(again)
        for name in ("projects", "tokens", "files", "scores", "stage_results"):
            assert after[name] == before[name], name
        assert again.job(done.id).state is State.SUCCEEDED
        assert again.tokens() == tokens
        assert again.model("p", "m").path == str(new / "models" / "p" / "m" / "f")
        lost = again.job(running.id)
        assert (lost.state, lost.retries) == (State.QUEUED, 0)
        assert again.attempts(running.id)[0].reason is Reason.NODE_LOST
        assert again.lease(running.id).fencing >= held + FENCES
        assert [host.state for host in again.hosts()] == ["down"]
        assert again.live_attempts() == []
        assert again.audit(limit=1)[0].action == "backup.restore"
        assert len([row for row in again.audit(limit=500) if not row.action.startswith("backup.")]) == trail
        again.close()
        moved = {path: content for path, content in files(new).items() if not path.endswith(".migrating")}
        without = {
            path: content
            for path, content in found.items()
            if "/attempts/a/secrets/" not in path
            and f"jobs/{running.id}/runs/" not in path
            and ".migrating" not in path
        }
        assert moved == without, "the running job's run folder named the old home: it begins anew"
        done_file = new / "jobs" / done.id / "published" / "m" / "model.safetensors"
        assert done_file.samefile(new / "models" / "p" / "m" / "f" / "model.safetensors"), (
            "one content under two names stays one"
        )


def test_at_the_same_place_unfinished_jobs_keep_their_runs_and_links(tmp_path):
    home, target = tmp_path / "home", tmp_path / "b.tar"
    _, store, _, running = seeded(home, "")
    store.close()
    kept("", home, target)
    home.rename(tmp_path / "lost")
    assert restore(target, home, None, True) == 0
    run = home / "jobs" / running.id / "runs" / "running"
    assert (run / "recipe.yaml").read_text() == "name: r\n"
    assert os.readlink(run / "stages" / "01-sst2") == str(home / "cache" / "stages" / "abc")
    assert not os.path.lexists(run / "stages" / "02-sst2"), "a link that led out of the home is not made again"


@OTHER_WAY_LONG
def test_runs_and_stages_can_be_left_out_and_unfinished_jobs_then_begin_anew(url, tmp_path):
    home, target = tmp_path / "home", tmp_path / "b.tar"
    _, store, _, running = seeded(home, url)
    attempt = store.attempts(running.id)[0]
    store.ingest(attempt.id, attempt.fencing, [{"id": 1, "event": "started"}], 500)
    store.close()
    kept(url, home, target, runs=False, stages=False)
    with database("postgresql" if url else "sqlite") as other:
        new = tmp_path / "new"
        restore(target, new, other or None, True)
        assert not (new / "jobs" / running.id / "runs").exists()
        assert not (new / "cache").exists()
        again = open_store(read_settings({}, home=new, database_url=other))
        assert (again.attempts(running.id)[0].ingested, again.attempts(running.id)[0].offset) == (0, 0)
        again.close()


@OTHER_WAY_LONG
def test_an_old_writer_is_refused_after_a_restore(url, tmp_path):
    """A server that goes on with what it held before writes nothing into the restored database."""
    from service.store.errors import Conflict, Fenced

    home, target = tmp_path / "home", tmp_path / "b.tar"
    _, store, _, running = seeded(home, url)
    scheduler = store.acquire("scheduler", "old", 60)
    kept(url, home, target)
    attempt = store.attempts(running.id)[0]
    store.close()
    with database("postgresql" if url else "sqlite") as other:
        restore(target, tmp_path / "new", other or None, True)
        again = open_store(read_settings({}, home=tmp_path / "new", database_url=other))
        with pytest.raises(Fenced):
            again.record_stage(attempt.id, attempt.fencing, "a")
        with pytest.raises(Conflict):
            again.renew_lease(scheduler, 60)
        assert again.acquire("scheduler", "new", 60).fencing > scheduler.fencing + FENCES
        again.close()


def test_homes_and_databases_that_hold_something_are_refused_and_left_alone(url, tmp_path):
    home, target = tmp_path / "home", tmp_path / "b.tar"
    _, store, _, _ = seeded(home, url)
    kept(url, home, target)
    before = files(home)
    with pytest.raises(CommandError, match="is not empty"):
        restore(target, home, url or None, True)
    if url:
        with pytest.raises(CommandError, match="the database is not empty"):
            restore(target, tmp_path / "new", url, True)
        assert not (tmp_path / "new").exists()
    with pytest.raises(CommandError, match="exists already"):
        kept(url, home, target)
    assert files(home) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "home"]
    store.close()


def test_a_home_in_use_is_named_as_that(tmp_path):
    from service.cli.serve import _only_server

    target, home = tmp_path / "b.tar", tmp_path / "home"
    seeded(home, "")[1].close()
    kept("", home, target)
    with _only_server(home), pytest.raises(CommandError, match="in use by a server"):
        restore(target, home, None, True)


def test_what_is_no_service_cannot_be_kept(tmp_path):
    with pytest.raises(CommandError, match="holds no service"):
        backup(tmp_path / "b.tar", tmp_path / "nothing", None, True, True, True)
    (tmp_path / "home").mkdir()
    with pytest.raises(CommandError, match="holds no service"):
        backup(tmp_path / "b.tar", tmp_path / "home", None, True, True, True)


def test_a_file_that_is_gone_is_listed_and_a_checkpoint_that_lost_one_is_left_out(tmp_path, monkeypatch, capsys):
    from service.cli import backup as module

    home, target = tmp_path / "home", tmp_path / "b.tar"
    _, store, _, running = seeded(home, "")
    run = home / "jobs" / running.id / "runs" / "running"
    for step in (2, 4):
        (run / f"checkpoint-{step}").mkdir()
        for name in ("weights", "complete.json"):
            (run / f"checkpoint-{step}" / name).write_text(name)
    (home / "models" / "p" / "m" / "f" / "model.safetensors").unlink()
    (home / "models" / "p" / "m" / "f").rmdir()
    store.close()
    real = module.opened_below

    def rotating(below, inner):
        if inner.endswith("checkpoint-2/weights"):
            os.unlink(home / inner)
        return real(below, inner)

    monkeypatch.setattr(module, "opened_below", rotating)
    kept("", home, target)
    told = json.loads(capsys.readouterr().out)
    assert sorted(Path(path).name for path in told["vanished"]) == ["f", "weights"]
    home.rename(tmp_path / "lost")
    restore(target, home, None, True)
    assert {str(path.relative_to(run)) for path in run.glob("checkpoint-*/*")} == {
        "checkpoint-4/weights",
        "checkpoint-4/complete.json",
    }


# A real server


def reach(port, path, token, body=None, **headers):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", body, {"Authorization": f"Bearer {token}", **headers}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


@contextmanager
def serving(home, url):
    """`finery serve` whose jobs are the stand-in's; (process, port, admin's token)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "STAND_IN_STEP_SECONDS": "0.05"}
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(home), str(port), url, "stand-in"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert json.loads(process.stdout.readline())["url"].endswith(str(port))
        yield process, port, (home / "admin.token").read_text().strip()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def kill_attempts(home):
    """End what the server's attempts still run: the machine is gone with the server."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if str(home) in os.readlink(path / "cwd") or str(home).encode() in (path / "cmdline").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)
        except OSError:
            continue


@OTHER_WAY_LONG
def test_a_working_server_is_kept_killed_and_brought_back_and_the_queue_goes_on(url, tmp_path):
    home, target = tmp_path / "home", tmp_path / "b.tar"
    recipe = TINY.replace("max_steps: 60", "max_steps: 20")
    taken = []
    with serving(home, url) as (_, port, token):
        stop = threading.Event()

        def submit(number):
            body = recipe.replace("NAME", f"job-{number}").encode()
            answer = reach(
                port,
                "/api/v1/jobs",
                token,
                body,
                **{"Content-Type": "application/yaml", "Idempotency-Key": f"k{number}"},
            )
            taken.append((answer["id"], time.time()))

        def submitting():
            number = 3
            while not stop.is_set() and number < 60:
                submit(number)
                number += 1
                time.sleep(0.05)

        for number in range(3):
            submit(number)
        until(lambda: reach(port, "/api/v1/jobs/counts", token)["running"] >= 2, 90, pause=0.2)
        thread = threading.Thread(target=submitting)
        thread.start()
        begun = time.time()
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "service.cli",
                "backup",
                str(target),
                "--home",
                str(home),
                "--json",
                *(["--database-url", url] if url else []),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        stop.set()
        thread.join()
        assert done.returncode == 0, done.stderr
        assert len([moment for _, moment in taken if moment > begun]) >= 2, "submissions arrived while it was made"
        assert reach(port, "/api/v1/jobs/counts", token)["failed"] == 0
    kill_attempts(home)
    home.rename(tmp_path / "lost")
    with database("postgresql" if url else "sqlite") as other:
        restore(target, home, other or None, True)
        store = open_store(read_settings({}, home=home, database_url=other))
        held = {job.id: job for job in store.jobs(limit=500)}
        assert {job for job, moment in taken if moment < begun} <= set(held) <= {job for job, _ in taken}
        assert not [job for job in held.values() if job.active]
        for job_id in list(held)[4:]:
            store.move(job_id, "cancel") if held[job_id].state is State.QUEUED and not held[job_id].attempts else None
        with serving(home, other) as (_, port, token):  # the token that was the admin's before
            new = reach(
                port,
                "/api/v1/jobs",
                token,
                recipe.replace("NAME", "new").encode(),
                **{"Content-Type": "application/yaml"},
            )["id"]
            until(lambda: all(job.over for job in store.jobs(limit=500)), 90, pause=0.2)
            ended = {job.id: job for job in store.jobs(limit=500)}
            assert ended[new].state is State.SUCCEEDED
            assert {job.state for job in ended.values()} <= {State.SUCCEEDED, State.CANCELLED}, [
                (job.state, job.message) for job in ended.values()
            ]
            lost = [job_id for job_id, job in held.items() if job.attempts]
            assert lost, "jobs were running when the backup was made"
            assert {ended[job_id].state for job_id in lost} == {State.SUCCEEDED}
        kill_attempts(home)
        store.close()
