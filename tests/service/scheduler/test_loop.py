import time
from dataclasses import replace

import pytest

from service.jobs.job import GpuSlot, Host, JobRequest, Resources
from service.jobs.states import Ending, Move, Reason, State
from service.scheduler.loop import Scheduler
from service.settings import read_settings
from service.store.changes import ATTEMPTS

HOST = Host("here", cpus=2, memory=1 << 34, slots=(GpuSlot(0, "H200", 141 << 30),))


@pytest.fixture
def store_url(sqlite_url):
    """SQLite alone: what databases could differ in is tested with the store."""
    return sqlite_url


@pytest.fixture
def scheduler(store):
    store.report_host(HOST)
    return Scheduler(store, read_settings({}), "me")


def submit(store, project="p", **fields):
    return store.submit(JobRequest("name: x\n", project, **fields))[0].id


def end(store, job, ending=None):
    attempt = store.attempt(store.job(job).attempt)
    return store.end_attempt(attempt.id, attempt.fencing, ending or Ending(Move.SUCCEED))


def states(store, *jobs):
    return [str(store.job(job).state) for job in jobs]


def test_jobs_start_as_there_is_room_and_the_next_ones_when_they_end(store, scheduler):
    jobs = [submit(store) for _ in range(3)]
    scheduler.step()
    assert states(store, *jobs) == ["starting", "starting", "queued"]
    attempt = store.attempts(jobs[0])[0]
    assert (attempt.executor, attempt.placement[0].host) == ("local", "here")
    assert store.lease(jobs[0]).holder == "me"
    assert scheduler.step().starts == ()
    end(store, jobs[0])
    scheduler.step()
    assert states(store, *jobs) == ["succeeded", "starting", "starting"]


def test_a_higher_priority_takes_the_gpu_and_the_other_job_comes_back(store, scheduler):
    low = submit(store, resources=Resources(gpus=1))
    scheduler.step()
    high = submit(store, resources=Resources(gpus=1), priority=1)
    scheduler.step()
    stopped = store.job(low)
    assert (stopped.state, stopped.reason) == (State.RECOVERING, Reason.PREEMPTED)
    assert stopped.message == f"makes room for job '{high}', which has a higher priority"
    assert scheduler.step().preemptions == ()
    end(store, low, Ending(Move.STOPPED, Reason.PREEMPTED, preempted=True))
    scheduler.step()
    assert states(store, low, high) == ["queued", "starting"]
    end(store, high)
    scheduler.step()
    assert states(store, low, high) == ["starting", "succeeded"]
    assert store.slot_holders() == {("here", 0): store.job(low).attempt}


def test_a_job_waits_for_the_ones_it_depends_on(store, scheduler):
    first = submit(store)
    second = submit(store, depends_on=(first,))
    third = submit(store, depends_on=(first, second))
    scheduler.step()
    assert states(store, first, second, third) == ["starting", "queued", "queued"]
    end(store, first)
    scheduler.step()
    assert states(store, second, third) == ["starting", "queued"]
    end(store, second)
    scheduler.step()
    assert states(store, third) == ["starting"]


def test_a_job_that_waits_in_vain_fails_and_so_do_those_that_wait_for_it(store, scheduler):
    first = submit(store)
    second = submit(store, depends_on=(first,))
    third = submit(store, depends_on=(second,))
    scheduler.step()
    end(store, first, Ending(Move.FAIL, Reason.DIVERGED, "nan"))
    for _ in range(3):
        scheduler.step()
    assert states(store, second, third) == ["failed", "failed"]
    failed = store.job(second)
    assert (failed.reason, failed.message) == (Reason.NO_RESOURCES, f"depends on job '{first}', which has failed")
    late = submit(store, depends_on=(first,))
    scheduler.step()
    assert states(store, late) == ["failed"]


def test_what_no_host_can_hold_fails_with_what_there_is(store, scheduler):
    job = submit(store, resources=Resources(gpus=2))
    scheduler.step()
    failed = store.job(job)
    assert (failed.state, failed.reason) == (State.FAILED, Reason.NO_RESOURCES)
    assert (
        failed.message == "needs 2 GPUs, 1 core; the only host has 1 GPUs (H200, 141 GiB), 2 cores and 16 GiB of memory"
    )


def test_a_deadline_that_passed_fails_the_job(store, scheduler):
    job = submit(store, deadline=time.time() - 1)
    scheduler.step()
    assert store.job(job).message == "its deadline passed before there was room for it"


def test_a_job_in_its_back_off_waits(store, scheduler):
    job = submit(store)
    scheduler.step()
    end(store, job, Ending(Move.STOPPED, Reason.INTERNAL, "boom", 1, not_before=time.time() + 0.4, counts=True))
    scheduler.step()
    assert states(store, job) == ["queued"]
    time.sleep(0.5)
    scheduler.step()
    assert states(store, job) == ["starting"]


def test_limits_of_projects_and_changed_priorities_count_at_once(store, scheduler):
    store.set_project("p", max_running=1)
    first, second, third = submit(store), submit(store), submit(store)
    store.set_priority(third, 5)
    scheduler.step()
    assert states(store, first, second, third) == ["queued", "queued", "starting"]
    store.set_project("p", max_running=2)
    scheduler.step()
    assert states(store, first, second) == ["starting", "queued"]


def test_a_host_that_joins_is_used_and_a_draining_one_is_not(store, scheduler):
    store.set_host_state("here", "draining")
    job = submit(store)
    scheduler.step()
    assert states(store, job) == ["queued"]
    store.report_host(replace(HOST, name="there"))
    scheduler.step()
    assert store.attempts(job)[0].placement[0].host == "there"


def test_of_two_servers_one_decides_and_the_other_takes_over_when_it_is_gone(store, scheduler):
    other = Scheduler(store, read_settings({}), "another")
    job = submit(store)
    other.step()
    assert states(store, job) == ["starting"]
    second = submit(store)
    assert scheduler.step().starts == ()
    assert states(store, second) == ["queued"]
    other.stop()
    scheduler.step()
    assert states(store, second) == ["starting"]


def test_a_restarted_server_need_not_wait_for_its_own_lease(store, scheduler):
    scheduler.step()
    job = submit(store)
    Scheduler(store, read_settings({}), "me").step()
    assert states(store, job) == ["starting"]
    assert scheduler.lease.fencing < store.lease("scheduler").fencing


def test_a_scheduler_that_slept_through_its_replacement_writes_nothing(store, scheduler):
    scheduler.step()
    job = submit(store)
    store.acquire("scheduler", "me", 30)  # the same server, restarted
    scheduler.step()
    assert states(store, job) == ["queued"]


def test_a_job_that_was_cancelled_meanwhile_is_left_alone(store, scheduler, monkeypatch):
    job, other = submit(store), submit(store)
    refresh = scheduler.board.refresh

    def cancelled_afterwards():
        refresh()
        if store.job(job).state is State.QUEUED:
            store.move(job, Move.CANCEL)

    monkeypatch.setattr(scheduler.board, "refresh", cancelled_afterwards)
    scheduler.step()
    assert states(store, job, other) == ["cancelled", "starting"]


def test_the_thread_wakes_for_a_submission_and_tells_who_starts_processes(store, scheduler):
    scheduler.start()
    try:
        time.sleep(0.3)
        seen = store.changes.version(ATTEMPTS)
        submitted = time.monotonic()
        job = submit(store)
        while states(store, job) == ["queued"]:  # a waiter may be woken for nothing, and is never forgotten
            seen, before = store.changes.wait(ATTEMPTS, seen, 5), seen
            assert seen != before
        assert time.monotonic() - submitted < 3
        assert states(store, job) == ["starting"]
    finally:
        scheduler.stop()
    assert store.lease("scheduler").holder == ""


def test_the_thread_goes_on_after_an_error(store, scheduler, monkeypatch):
    refresh, failures = scheduler.board.refresh, [RuntimeError("once"), RuntimeError("twice")]

    def sometimes():
        if failures:
            raise failures.pop()
        refresh()

    monkeypatch.setattr(scheduler.board, "refresh", sometimes)
    monkeypatch.setattr(scheduler._stop, "wait", lambda seconds: time.sleep(0.01))
    job = submit(store)
    scheduler.start()
    try:
        limit = time.monotonic() + 10
        while store.job(job).state is State.QUEUED and time.monotonic() < limit:
            time.sleep(0.02)
        assert states(store, job) == ["starting"]
    finally:
        scheduler.stop()
