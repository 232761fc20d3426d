"""The verbs that talk to a service, against a real server; nothing runs the jobs there."""

import json
import socket
import threading
import time

import pytest
import uvicorn

from pipelines.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE
from service.api.app import create_app
from service.cli.__main__ import main
from service.cli.jobs import since
from service.cli.serve import first_token
from service.jobs.job import HostShare
from service.jobs.states import Ending, Move
from service.settings import read_settings
from service.store.store import open_store

RECIPE = """
name: mini
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, task: {kind: classification, columns: [text], label: label, train: train.csv}}
  - {stage: publish, to: registry/mini}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    settings = read_settings({}, home=home)
    store = open_store(settings)
    token = first_token(store, home)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = create_app(settings, store)
    config = uvicorn.Config(app, log_config=None, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", token, store
    server.should_exit = True
    thread.join(10)
    store.close()


@pytest.fixture
def finery(served, capsys):
    """`finery(…)` runs a command against the server: (exit code, stdout, stderr)."""

    def run(*words):
        code = main([*map(str, words), "--server", served[0], "--token-file", str(served[1])])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\ngood,1\nbad,0\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "recipe.yaml"


@pytest.fixture
def job(finery, recipe):
    return json.loads(finery("submit", recipe, "--json")[1])


def test_a_recipe_is_submitted_with_its_files_and_its_folder_becomes_a_name(finery, served, recipe):
    code, out, err = finery("submit", recipe, "--priority", 3, "--json", "--key", "once")
    job = json.loads(out)
    assert (code, job["state"], job["priority"]) == (EXIT_DONE, "queued", 3)
    assert "uploading train.csv" in err
    assert "called mini" in err
    assert [each.partition("=")[0] for each in job["overrides"]] == ["stages[1].to", "stages[0].task.train"]
    (file,) = [each for each in served[2].files(None, limit=10) if each.filename == "train.csv"]
    assert job["overrides"][1].endswith(f'"file:{file.id}"')
    again = json.loads(finery("submit", recipe, "--priority", 3, "--json", "--key", "once")[1])
    assert again["id"] == job["id"]


def test_secrets_are_named_and_only_by_names_of_secrets(finery, served, recipe):
    job = json.loads(finery("submit", recipe, "--secret", "HF_TOKEN", "--secret", "SECRET_JUDGE", "--json")[1])
    assert served[2].job(job["id"]).request.secrets == ("HF_TOKEN", "SECRET_JUDGE")
    code, out, err = finery("submit", recipe, "--secret", "LD_PRELOAD")
    assert code == EXIT_USAGE
    assert out == ""
    assert "secrets" in err


def test_mistakes_come_back_with_the_file_and_its_line(finery, recipe):
    recipe.write_text(RECIPE.replace("bert-tiny", "bert-tny"))
    code, out, err = finery("submit", recipe)
    assert code == EXIT_USAGE
    assert f"{recipe}:3  model.architecture.preset" in err
    assert out == ""


def test_jobs_are_listed_filtered_and_told_as_json(finery, job):
    code, out, _ = finery("jobs")
    assert code == EXIT_DONE
    assert job["id"] in out
    told = json.loads(finery("jobs", "--state", "queued", "--limit", 1, "--json")[1])
    assert [each["id"] for each in told["jobs"]] == [job["id"]]
    assert finery("jobs", "--name", "no such")[1] == "No such jobs.\n"
    assert finery("jobs", "--state", "sleeping")[0] == EXIT_USAGE


def test_a_job_is_paused_resumed_cancelled_and_retried(finery, job):
    states = [
        json.loads(finery(verb, job["id"], "--json")[1])["state"] for verb in ("pause", "resume", "cancel", "retry")
    ]
    assert states == ["paused", "queued", "cancelled", "queued"]


def test_a_job_is_deleted_once_it_has_ended(finery, job):
    assert finery("delete", job["id"])[0] == EXIT_USAGE
    finery("cancel", job["id"])
    assert finery("delete", job["id"])[:2] == (0, f"{job['id']}  deleted\n")
    assert finery("delete", job["id"])[0] == EXIT_USAGE


def test_limits_are_given_with_the_recipe(finery, recipe):
    told = json.loads(
        finery("submit", recipe, "--max-seconds", "90", "--ttl-seconds-after-finished", "60", "--json")[1]
    )
    assert (told["max_seconds"], told["ttl_seconds_after_finished"]) == (90, 60)


def test_what_cannot_be_done_now_says_when_it_can(finery, job):
    code, _, err = finery("retry", job["id"])
    assert code == EXIT_USAGE
    assert "the job is queued" in err


@pytest.mark.parametrize("verb", ["pause", "cancel", "retry", "logs", "resume", "delete"])
def test_an_unknown_job_is_one_sentence(finery, verb):
    code, _, err = finery(verb, "job-nowhere")
    assert code == EXIT_USAGE
    assert len(err.strip().splitlines()) == 1


def cancelled(store, job_id):
    """A job's attempt, which a user cancels, as a supervisor would see it to its end."""
    attempt = store.start(job_id, (HostShare("here"),), executor="local", holder="me", lease_seconds=30)
    metric = {"id": 1, "event": "metric", "stage": "supervised", "step": 4, "metrics": {"loss": 0.5}}
    store.ingest(attempt.id, attempt.fencing, [metric], 1)
    store.move(job_id, Move.CANCEL)
    store.end_attempt(attempt.id, attempt.fencing, Ending(Move.STOPPED))


def test_following_ends_with_the_job_and_its_exit_code(finery, served, job):
    threading.Timer(0.3, cancelled, (served[2], job["id"])).start()
    code, out, err = finery("logs", "-f", job["id"])
    assert code == EXIT_STOPPED
    assert "cancelled" in out
    assert "supervised: started" in err


def test_events_are_one_json_object_a_line(finery, served, job):
    cancelled(served[2], job["id"])
    code, out, _ = finery("logs", job["id"], "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == EXIT_DONE
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["state"] == "cancelled"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_who_stops_looking_gets_no_words_among_json(finery, served, job, monkeypatch, options):
    def stream(connection, path):
        yield {"id": 1, "event": "state", "state": "running"}
        raise KeyboardInterrupt

    monkeypatch.setattr("service.client.Connection.stream", stream)
    code, out, err = finery("logs", "-f", job["id"], *options)
    words = f"No longer looking; the job goes on. finery cancel {job['id']} stops it."
    assert code == EXIT_STOPPED
    assert words in err
    if options:
        assert [json.loads(line)["id"] for line in out.splitlines()] == [1]


def test_the_log_of_a_job_that_never_ran_is_empty(finery, job):
    assert finery("logs", job["id"])[:2] == (EXIT_DONE, "")


def test_a_token_is_shown_once_and_can_be_taken_back(finery, served, tmp_path, capsys):
    code, out, _ = finery("token", "create", "--role", "viewer", "--name", "eve")
    assert code == EXIT_DONE
    (tmp_path / "eve").write_text(out)
    as_eve = ["--server", served[0], "--token-file", str(tmp_path / "eve")]
    assert main(["jobs", *as_eve]) == EXIT_DONE
    assert main(["token", "list", *as_eve]) == EXIT_FAILED  # a viewer may not
    capsys.readouterr()
    tokens = json.loads(finery("token", "list", "--json")[1])["tokens"]
    assert out.strip() not in json.dumps(tokens)
    (mine,) = [each for each in tokens if each["name"] == "eve" and not each["revoked"]]
    assert finery("token", "revoke", mine["id"])[0] == EXIT_DONE
    capsys.readouterr()
    assert main(["jobs", *as_eve]) == EXIT_FAILED
    assert "token" in capsys.readouterr().err


def test_no_host_has_reported_where_none_runs(finery):
    assert finery("hosts")[:2] == (EXIT_DONE, "No host has reported yet.\n")


def test_a_server_that_is_not_there_is_told_apart_from_a_mistake(served, capsys):
    code = main(["cancel", "job-x", "--server", "http://127.0.0.1:9", "--token-file", str(served[1])])
    assert code == EXIT_FAILED
    assert "does not answer" in capsys.readouterr().err


def test_times_are_told_as_people_do():
    from datetime import datetime

    now = datetime.fromisoformat("2026-01-02T12:00:00+00:00")
    told = [
        since(moment, now)
        for moment in (
            "2026-01-02T11:59:57+00:00",
            "2026-01-02T11:48:00+00:00",
            "2026-01-02T10:00:00Z",
            "2025-12-28T11:00:00Z",
            None,
        )
    ]
    assert told == ["3 s ago", "12 min ago", "2 h ago", "5 d ago", "-"]
