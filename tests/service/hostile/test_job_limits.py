"""Nothing runs or lies there for ever: a job's time, silence, how long it is kept, and its deletion."""

import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pipelines.runs.distributed import Heartbeat
from service.attempts import watching
from service.attempts import watching as limits
from service.attempts.folders import Folders
from service.disk import DELETED, forget_job, sweep_folders, sweep_jobs
from service.jobs.job import Host, HostShare, JobRequest
from service.jobs.states import Ending, Move, Reason, State
from service.scheduler.loop import Board, Scheduler
from service.settings import Settings, read_settings
from service.store.errors import Conflict, NotFound
from tests.service.api.conftest import served  # noqa: F401
from tests.service.attempts.conftest import server  # noqa: F401

YAML = {"Content-Type": "application/yaml"}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(watching, "LIMITS_SECONDS", 0.05)


def ended(store, job, move=Move.SUCCEED, reason=None):
    attempt = store.start(job, (HostShare("here"),), executor="local", holder="me", lease_seconds=60)
    store.attempt_started(attempt.id, attempt.fencing, {"record": "x"})
    store.record_stage(attempt.id, attempt.fencing, "evaluate", metrics={"glue/mrpc": {"f1": 0.5}}, with_scores=True)
    store.ingest(attempt.id, attempt.fencing, [{"id": 1, "event": "started"}], 9)
    if move is Move.SUCCEED:
        store.publish_model(attempt.id, attempt.fencing, name="m", fingerprint=job[-20:], path="/m")
    store.end_attempt(attempt.id, attempt.fencing, Ending(move, reason))
    return attempt


# --- the time that a job may run


def test_a_job_is_stopped_with_a_checkpoint_when_it_has_run_for_as_long_as_it_may(server):  # noqa: F811
    job = server.submit(steps=100_000, max_seconds=1.0)
    found, attempt = server.run(job)
    assert (found.state, found.reason) == (State.FAILED, Reason.TIME_LIMIT)
    assert "ran for the 1 s that it may run; its last checkpoint is kept" in found.message
    assert (server.store.attempt(attempt.id).reason, server.store.attempt(attempt.id).exit_code) == (
        Reason.TIME_LIMIT,
        75,
    )
    done = server.steps(job)[-1][1]
    assert (server.folders(job).run / "checkpoint.json").read_text() == f'{{"step": {done}}}'
    assert any(
        event.event == "warning" and "1 s that it may run" in event.fields["message"]
        for event in server.store.events_after(job)
    )
    server.store.move(job, Move.RETRY)  # the user's retry begins to count anew, and goes on where it stopped
    again = server.place(job)
    server.until(job, lambda found: server.steps(job)[-1][1] > done)
    assert server.store.attempt(again.id).reason is None
    assert server.steps(job)[-1][2] == done


def test_a_restarted_server_still_knows_why_an_attempt_was_stopped(server):  # noqa: F811
    job = server.submit(steps=100_000, max_seconds=0.8)
    attempt = server.place(job)
    server.until(job, lambda found: server.store.attempt(attempt.id).reason is Reason.TIME_LIMIT)
    server.restarted()
    assert server.until(job, lambda found: found.over).reason is Reason.TIME_LIMIT


def test_a_process_that_does_not_stop_is_killed(server, monkeypatch):  # noqa: F811
    server.settings = server.settings.model_copy(update={"stop_seconds": 0.3})
    job = server.submit(steps=100_000, max_seconds=0.8)
    server.restarted()
    server.place(job)
    server.until(job, lambda found: (server.folders(job).run / "steps.log").exists() and server.steps(job))
    os.kill(server.steps(job)[-1][0], signal.SIGSTOP)  # it cannot answer SIGTERM
    found = server.until(job, lambda found: found.over)
    assert (found.state, found.reason) == (State.FAILED, Reason.TIME_LIMIT)


def test_the_server_s_limit_holds_for_jobs_that_ask_for_more_or_for_none():
    job = SimpleNamespace(request=JobRequest("x", "p", max_seconds=50), attempts_before_retry=1)
    attempts = [
        SimpleNamespace(number=number, started=float(begin), ended=end)
        for number, begin, end in ((1, 0, 90.0), (2, 100, 110.0), (3, 120, None))
    ]
    assert limits.longest(job, Settings()) == 50
    assert limits.longest(job, Settings(max_seconds=20)) == 20
    assert limits.longest(replace_request(job, max_seconds=None), Settings(max_seconds=20)) == 20
    assert limits.longest(replace_request(job, max_seconds=None), Settings()) is None
    assert limits.seconds_run(job, attempts, 130.0) == 20.0  # the first was before the retry; waiting does not count
    assert limits.over_time(job, attempts, Settings(max_seconds=20), 129.9) is None
    assert limits.over_time(job, attempts, Settings(max_seconds=20), 130.0).reason is Reason.TIME_LIMIT


def replace_request(job, **changes):
    return SimpleNamespace(request=replace(job.request, **changes), attempts_before_retry=job.attempts_before_retry)


@pytest.mark.parametrize("given", [0, -1, "soon", 1e300])
def test_a_limit_that_is_none_is_refused(served, given):  # noqa: F811
    answer = served.submitter.post("/api/v1/jobs", json={"recipe": "x", "max_seconds": given})
    assert answer.status_code == 422
    assert "max_seconds" in answer.text
    assert served.store.jobs("acme") == []


def test_limits_stand_in_the_job_s_document(served):  # noqa: F811
    job = served.job(max_seconds=60, ttl_seconds_after_finished=3600)
    found = served.viewer.get(f"/api/v1/jobs/{job}").json()
    assert (found["max_seconds"], found["ttl_seconds_after_finished"]) == (60, 3600)


# --- silence


def silent(tmp_path, now, beats=None, console=None, events=None, **settings):
    """What the watchdog says `now` seconds after the start, when files were last touched so many seconds after it."""
    folders, record = Folders(tmp_path, "r"), tmp_path / "record"
    begin = 1_000_000.0
    for path, moment in {
        **{folders.run / "heartbeats" / name: moment for name, moment in (beats or {}).items()},
        record / "console" / "0.log": console,
        folders.events: events,
    }.items():
        if moment is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            os.utime(path, (begin + moment,) * 2)
    attempt = SimpleNamespace(started=begin, created=begin)
    return limits.silent(attempt, folders, record, Settings(**{"stall_seconds": 900.0, **settings}), begin + now)


def test_the_rank_that_is_silent_is_named(tmp_path):
    found = silent(
        tmp_path,
        1005,
        beats={"0": 1004, "0.step": 100, "1": 105, "1.step": 100, "2": 1003, "2.step": 100},
        events=100,
        console=90,
    )
    assert found.reason is Reason.STALLED
    assert found.message.startswith("rank 1 has been silent for 900 s, and nothing moved for 905 s")


def test_ranks_that_wait_for_each_other_are_alive_and_stalled(tmp_path):
    found = silent(tmp_path, 1005, beats={"0": 1004, "0.step": 100, "1": 1003, "1.step": 101}, events=100)
    assert found.message.startswith("it has been silent for 904 s: no event, no output and no step")


@pytest.mark.parametrize("sign", [{"events": 200}, {"console": 200}, {"beats": {"1.step": 200}}])
def test_any_sign_is_enough(tmp_path, sign):
    assert silent(tmp_path, 1000, **sign) is None
    assert silent(tmp_path, 1200, **sign).reason is Reason.STALLED


def test_a_process_that_only_lives_is_no_sign(tmp_path):
    assert silent(tmp_path, 1000, beats={"0": 999, "1": 999}).reason is Reason.STALLED


def test_what_an_earlier_attempt_left_says_nothing(tmp_path):
    found = silent(tmp_path, 1000, beats={"0": 999, "1": -50, "1.step": -50})
    assert "rank" not in found.message


def test_nothing_is_stalled_at_once_or_where_it_is_switched_off(tmp_path):
    assert silent(tmp_path, 899) is None
    assert silent(tmp_path, 1e7, stall_seconds=0) is None


def test_a_link_in_place_of_a_sign_or_a_time_in_the_future_stops_nobody(tmp_path):
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / "heartbeats").symlink_to("/proc")
    assert silent(tmp_path, 1000, console=5000) is None


def test_a_silent_attempt_is_stopped_and_tried_again(server):  # noqa: F811
    server.settings = server.settings.model_copy(update={"stall_seconds": 1.0, "stop_seconds": 0.3})
    job = server.submit(steps=100_000)
    server.restarted()
    attempt = server.place(job)
    server.until(job, lambda found: (server.folders(job).run / "steps.log").exists() and server.steps(job))
    os.kill(server.steps(job)[-1][0], signal.SIGSTOP)
    found = server.until(job, lambda found: not found.active)
    assert (found.state, found.reason, found.retries) == (State.QUEUED, Reason.STALLED, 1)
    assert server.store.attempt(attempt.id).reason is Reason.STALLED
    assert "it has been silent for" in found.message


def test_a_heartbeat_says_that_a_process_lives_and_moves(tmp_path):
    with Heartbeat(tmp_path, 3) as heart:
        heart.step()
        limit = time.monotonic() + 10
        while not (tmp_path / "heartbeats" / "3").exists():
            assert time.monotonic() < limit
        assert (tmp_path / "heartbeats" / "3.step").exists()
    assert list((tmp_path / "heartbeats").iterdir()) == []


# --- how long a job is kept


def test_a_job_that_has_ended_is_deleted_when_its_time_is_over_and_its_models_stay(store, tmp_path):
    settings = read_settings({}, home=tmp_path / "home", ttl_seconds_after_finished=1000)
    kept, soon, default, running = (
        store.submit(JobRequest("x", "p", ttl_seconds_after_finished=seconds))[0].id
        for seconds in (1e6, 10.0, None, 0.0)
    )
    for job in (kept, soon, default):
        ended(store, job)
        (settings.jobs / job / "runs").mkdir(parents=True)
    now = time.time()
    assert sweep_jobs(store, settings, lambda: now + 5) == 0
    assert sweep_jobs(store, settings, lambda: now + 50) == 1
    assert sweep_jobs(store, settings, lambda: now + 5000) == 1
    assert {job.id for job in store.jobs("p")} == {kept, running}
    assert [path.name for path in settings.jobs.iterdir()] == [kept]
    assert {model.job for model in store.models("p")} == {kept, soon, default}
    assert store.count("p")[State.QUEUED] == 1
    store.move(running, Move.CANCEL)
    assert sweep_jobs(store, settings.model_copy(update={"ttl_seconds_after_finished": None}), lambda: now + 60) == 1


def test_a_job_that_another_one_needs_is_kept_until_that_has_ended(store, tmp_path):
    settings = read_settings({}, home=tmp_path, ttl_seconds_after_finished=0)
    first = store.submit(JobRequest("x", "p"))[0].id
    second = store.submit(JobRequest("y", "p", depends_on=(first,)))[0].id
    ended(store, first)
    with pytest.raises(Conflict, match=f"job '{second}' needs the job"):
        store.delete_job(first)
    assert sweep_jobs(store, settings, lambda: time.time() + 1) == 0
    store.move(second, Move.CANCEL)
    assert sweep_jobs(store, settings, lambda: time.time() + 1) == 2


def test_a_job_that_waits_for_a_deleted_one_is_told(store, tmp_path):
    store.report_host(Host("here", cpus=2))
    first = store.submit(JobRequest("x", "p"))[0].id
    second = store.submit(JobRequest("y", "p", depends_on=(first,)))[0].id
    for job in (first, second):
        store.move(job, Move.CANCEL)
    store.delete_job(first)
    store.move(second, Move.RETRY)
    scheduler = Scheduler(store, read_settings({}, home=tmp_path), "me")
    scheduler.step()
    assert isinstance(scheduler.board, Board)
    assert store.job(second).message == f"depends on job '{first}', which has been deleted"


def test_a_deletion_that_was_cut_off_is_finished(store, tmp_path):
    settings = read_settings({}, home=tmp_path)
    gone, there = (store.submit(JobRequest("x", "p"))[0].id for _ in range(2))
    store.move(gone, Move.CANCEL)
    for job in (gone, there, "job-of-nobody"):
        (settings.jobs / job).mkdir(parents=True)
    (settings.jobs / gone / DELETED).touch()
    (settings.jobs / there / DELETED).touch()
    store.delete_job(gone)
    assert sweep_folders(store, settings) == 1
    assert {path.name for path in settings.jobs.iterdir()} == {there, "job-of-nobody"}


# --- DELETE /api/v1/jobs/ID


def test_deleting_a_job_takes_everything_but_what_it_published(served):  # noqa: F811
    job = served.job()
    assert served.submitter.delete(f"/api/v1/jobs/{job}").status_code == 409
    served.store.report_host(Host("here", cpus=64, memory=1 << 36))
    ended(served.store, job)
    folder = served.settings.jobs / job
    (folder / "runs").mkdir(parents=True)
    (folder / "runs" / "away").symlink_to(served.settings.home)
    for client, status in ((served.nobody, 401), (served.viewer, 403), (served.stranger, 404)):
        assert client.delete(f"/api/v1/jobs/{job}").status_code == status
        assert folder.is_dir()
    assert served.submitter.delete(f"/api/v1/jobs/{job}").status_code == 204
    assert not folder.exists()
    assert (served.settings.home / "finery.db").is_file()
    assert served.submitter.delete(f"/api/v1/jobs/{job}").status_code == 404
    for address in ("", "/events", "/attempts", "/stages", "/logs"):
        assert served.viewer.get(f"/api/v1/jobs/{job}{address}").status_code == 404
    assert [model.job for model in served.store.models("acme")] == [job]
    assert served.store.benchmarks("acme") == []


def test_the_key_of_a_deleted_job_is_free_again(store):
    request = JobRequest("x", "p", idempotency_key="k")
    job = store.submit(request)[0].id
    store.move(job, Move.CANCEL)
    store.delete_job(job)
    again, new = store.submit(request)
    assert new
    assert again.id != job


def test_another_project_s_job_is_not_found(store, tmp_path):
    job = store.submit(JobRequest("x", "p"))[0].id
    store.move(job, Move.CANCEL)
    with pytest.raises(NotFound):
        forget_job(store, read_settings({}, home=tmp_path), job, "q")
    assert store.job(job).state is State.CANCELLED
