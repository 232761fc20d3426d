"""The supervisor: what `finery serve` embeds, around the stand-in for `python -m pipelines`."""

import shutil
import time

import pytest

from service.executors.local import LocalExecutor, marked
from service.executors.protocol import Gpu, HostCapacity
from service.jobs.job import JobRequest, Resources
from service.jobs.states import AttemptState, Move, Reason, State
from service.settings import Settings
from service.store.store import open_store
from service.supervisor import Supervisor
from tests.service.attempts.conftest import RECIPE, RUN
from tests.service.executors.worlds import until


@pytest.fixture
def homes(tmp_path, migrated_sqlite, monkeypatch):
    """Makes supervisors that share a database, each with a home and a host of its own."""
    monkeypatch.delenv("FINERY_HOME")
    shutil.copy(migrated_sqlite, tmp_path / "finery.db")
    running = []

    def begin(name, cpus=2, gpus=0, **more):
        url = f"sqlite:///{tmp_path / 'finery.db'}"
        settings = Settings(home=tmp_path / name, database_url=url, isolation="none", **more)
        host = HostCapacity(name, cpus, 8 << 30, tuple(Gpu(index, 80 << 30, "pretended") for index in range(gpus)))
        store = open_store(settings)
        store.ensure_project("default")
        supervisor = Supervisor(settings, store, LocalExecutor(host), RUN)
        supervisor.start()
        running.append((supervisor, store))
        return supervisor, store

    yield begin
    for supervisor, store in running:
        for attempt, _ in store.live_attempts():
            if attempt.handle and (handle := supervisor.executor.reattach(attempt.handle)):
                supervisor.executor.kill(handle)
        supervisor.stop()
        store.close()


def submit(store, steps=3, **fields):
    return store.submit(
        JobRequest(recipe=RECIPE.format(steps=steps, evaluate="scores"), project="default", name="tiny", **fields)
    )[0].id


def test_a_submitted_job_starts_by_itself_and_ends(homes):
    _, store = homes("here")
    job = submit(store)
    until(lambda: store.job(job).over)
    assert store.job(job).state is State.SUCCEEDED


def test_more_jobs_than_slots_wait_their_turn_and_no_slot_is_held_at_the_end(homes):
    _, store = homes("here", cpus=4, gpus=2)
    jobs = [submit(store, resources=Resources(gpus=1)) for _ in range(5)]
    most = 0
    while not all(store.job(job).over for job in jobs):
        most = max(most, len(store.live_attempts()))
        time.sleep(0.05)
    assert {store.job(job).state for job in jobs} == {State.SUCCEEDED}
    assert most == 2
    assert store.slot_holders() == {}
    assert {part.gpus for job in jobs for attempt in store.attempts(job) for part in attempt.placement} == {(0,), (1,)}


def test_stopping_the_server_leaves_the_attempt_running_and_the_next_server_goes_on(homes, tmp_path):
    first, store = homes("here")
    job = submit(store, steps=25)
    until(lambda: store.job(job).progress.get("step", 0) >= 2)
    first.stop()
    [(attempt, _)] = store.live_attempts()
    assert marked(attempt.id) != []
    _, again = homes("here")
    until(lambda: again.job(job).over)
    assert again.job(job).state is State.SUCCEEDED
    assert len(again.attempts(job)) == 1


def test_a_job_of_higher_priority_takes_the_place_of_a_lower_one_which_goes_on_later(homes):
    _, store = homes("here", cpus=1)
    low = submit(store, steps=20)
    until(lambda: store.job(low).progress.get("step", 0) >= 2)
    high = submit(store, steps=2, priority=10)
    until(lambda: store.job(high).over)
    assert store.job(high).state is State.SUCCEEDED
    until(lambda: store.job(low).over, 40)
    ended = store.job(low)
    assert (ended.state, ended.retries) == (State.SUCCEEDED, 0)
    assert ended.preemptions >= 1
    assert [event.step for event in store.events_after(low, kinds=["metric"])] == list(range(1, 21))


def test_a_host_that_will_end_stops_what_runs_there_which_goes_on_when_there_is_a_place(homes):
    """The notice of a spot host: a real process saves, exits with 75, and the next attempt has its steps."""
    _, store = homes("here")
    job = submit(store, steps=20)
    until(lambda: store.job(job).progress.get("step", 0) >= 2)
    store.set_host_state("here", "draining", stop=True)
    until(lambda: store.job(job).state is State.QUEUED)
    waiting = store.job(job)
    assert (waiting.reason, waiting.retries, waiting.preemptions) == (Reason.PREEMPTED, 0, 1)
    assert store.attempts(job)[0].exit_code == 75
    store.set_host_state("here", "up")
    until(lambda: store.job(job).over, 40)
    assert store.job(job).state is State.SUCCEEDED
    assert [event.step for event in store.events_after(job, kinds=["metric"])] == list(range(1, 21))


def test_a_job_that_needs_another_one_waits_for_it(homes):
    _, store = homes("here")
    first = submit(store, steps=4)
    second = submit(store, steps=1, depends_on=(first,))
    until(lambda: store.job(second).over)
    began = store.attempts(second)[0].created
    assert began >= store.job(first).finished


def test_two_servers_on_one_database_each_run_what_lies_on_their_own_host(homes, tmp_path):
    _, store = homes("one", cpus=1)
    homes("two", cpus=1)
    jobs = [submit(store, steps=10) for _ in range(4)]
    until(lambda: all(store.job(job).over for job in jobs), 40)
    assert {store.job(job).state for job in jobs} == {State.SUCCEEDED}
    for job in jobs:
        [attempt] = store.attempts(job)
        [part] = attempt.placement
        assert (tmp_path / part.host / "jobs" / job / "runs" / "tiny" / "steps.log").exists()
    assert {attempt.placement[0].host for job in jobs for attempt in store.attempts(job)} == {"one", "two"}


def test_what_ran_on_a_host_that_an_admin_declares_dead_goes_on_elsewhere(homes):
    first, store = homes("one", cpus=1)
    job = submit(store, steps=400)
    until(lambda: store.job(job).progress.get("step", 0) >= 2)
    first.stop()
    [(attempt, _)] = store.live_attempts()
    first.executor.kill(
        first.executor.reattach(attempt.handle)
    )  # the machine burns down: neither its files nor its processes are seen again
    store.attempt_started(
        attempt.id, attempt.fencing, {**attempt.handle, "boot": "of another machine", "record": "/nonexistent/record"}
    )
    store.renew(first.holder, -1.0)
    homes("two", cpus=1, lease_seconds=2.0)  # it looks for what nobody speaks for every half second
    time.sleep(0.6)
    assert store.job(job).state is State.RUNNING, "a silent server proves nothing"
    store.set_host_state("one", "down")
    until(lambda: store.attempt(attempt.id).state is AttemptState.ENDED, 30)
    assert store.attempt(attempt.id).reason is Reason.NODE_LOST
    until(lambda: len(store.attempts(job)) == 2, 30)
    assert store.attempts(job)[-1].placement[0].host == "two"
    store.move(job, Move.CANCEL)
    until(lambda: store.job(job).over)


def test_a_host_that_is_gone_from_the_executor_is_down(homes, monkeypatch):
    supervisor, store = homes("one")
    monkeypatch.setattr(supervisor.executor, "capacity", lambda: (HostCapacity("other", 1, 0),))
    supervisor._report()
    assert {host.name: host.state for host in store.hosts()} == {"one": "down", "other": "up"}


def test_pause_resume_and_cancel_reach_the_process(homes):
    _, store = homes("here")
    job = submit(store, steps=400)
    until(lambda: store.job(job).progress.get("step", 0) >= 2)
    store.move(job, Move.PAUSE)
    until(lambda: store.job(job).state is State.PAUSED)
    assert marked(store.attempts(job)[-1].id) == []
    store.move(job, Move.RESUME)
    until(lambda: store.job(job).state is State.RUNNING)
    store.move(job, Move.CANCEL)
    until(lambda: store.job(job).state is State.CANCELLED)
    assert marked(store.attempts(job)[-1].id) == []
