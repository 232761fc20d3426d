import threading
import time

import pytest

from service.jobs.job import GpuSlot, Host, HostShare, JobRequest, Resources
from service.jobs.states import AttemptState, Ending, IllegalTransition, Move, Reason, State
from service.store.errors import Conflict, Fenced, NotFound
from service.store.store import Store

HOST = Host("here", cpus=4, memory=1 << 34, slots=(GpuSlot(0, "H200", 141 << 30), GpuSlot(1, "H200", 141 << 30)))
STOPPED = Ending(Move.STOPPED, exit_code=75)


@pytest.fixture
def job(store):
    store.report_host(HOST)
    return store.submit(JobRequest("name: x\n", "p", resources=Resources(gpus=1)))[0]


def start(store, job, gpus=(0,), **options):
    return store.start(job.id, (HostShare("here", gpus),), executor="local", holder="me", lease_seconds=30, **options)


def test_a_start_takes_state_gpus_lease_and_a_token_together(store, job):
    attempt = start(store, job, (1, 0))
    assert (attempt.number, attempt.fencing, attempt.state) == (1, 1, AttemptState.ASSIGNED)
    assert attempt.placement == (HostShare("here", (1, 0)),)
    now = store.job(job.id)
    assert (now.state, now.attempt, now.attempts) == (State.STARTING, attempt.id, 1)
    assert store.slot_holders() == {("here", 0): attempt.id, ("here", 1): attempt.id}
    lease = store.lease(job.id)
    assert (lease.holder, lease.fencing) == ("me", 1)
    assert time.time() < lease.expires < time.time() + 31
    assert [(found.id, of.id) for found, of in store.live_attempts()] == [(attempt.id, job.id)]
    assert store.live_attempts("another server") == []


def test_a_start_on_a_taken_gpu_changes_nothing(store, job):
    start(store, job)
    other = store.submit(JobRequest("name: y\n", "p"))[0]
    with pytest.raises(Conflict, match="'here' has no longer all of its GPUs 0, 1 free"):
        start(store, other, (0, 1))
    assert store.job(other.id).state is State.QUEUED
    assert ("here", 1) not in store.slot_holders()
    assert store.attempts(other.id) == []


def test_a_job_starts_once_however_many_threads_try(store, job):
    outcomes = []
    gate = threading.Barrier(4)

    def try_it(gpu):
        gate.wait()
        try:
            outcomes.append(start(store, job, gpu))
        except (IllegalTransition, Conflict) as error:
            outcomes.append(error)

    threads = [threading.Thread(target=try_it, args=((number % 2,),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(not isinstance(outcome, Exception) for outcome in outcomes) == 1
    assert len(store.attempts(job.id)) == len(store.slot_holders()) == 1


def test_a_scheduler_that_was_replaced_starts_nothing(store, job):
    old = store.acquire("scheduler", "a", 0.0)
    new = store.acquire("scheduler", "b", 30)
    assert old is not None
    assert new is not None
    with pytest.raises(Conflict, match="the lease of 'scheduler' went to another holder"):
        start(store, job, scheduler=old)
    assert start(store, job, scheduler=new).number == 1


def test_the_end_frees_everything_and_a_second_report_of_it_changes_nothing(store, job):
    attempt = start(store, job)
    store.attempt_started(attempt.id, attempt.fencing, {"pid": 7})
    assert store.attempt(attempt.id).handle == {"pid": 7}
    ended = store.end_attempt(attempt.id, attempt.fencing, Ending(Move.FAIL, Reason.DIVERGED, "loss is nan", 1))
    assert (ended.state, ended.reason, ended.message) == (State.FAILED, Reason.DIVERGED, "loss is nan")
    assert store.slot_holders() == {}
    assert store.live_attempts() == []
    assert store.end_attempt(attempt.id, attempt.fencing, Ending(Move.SUCCEED)) == ended
    assert store.attempt(attempt.id).reason is Reason.DIVERGED
    assert len(store.events_after(job.id)) == 3


@pytest.mark.parametrize(
    ("asked", "move", "expected"),
    [
        (None, Move.STOPPED, State.QUEUED),
        (Move.PAUSE, Move.STOPPED, State.PAUSED),
        (Move.CANCEL, Move.STOPPED, State.CANCELLED),
        (Move.CANCEL, Move.SUCCEED, State.CANCELLED),
        (Move.PREEMPT, Move.STOPPED, State.QUEUED),
        (Move.PREEMPT, Move.SUCCEED, State.SUCCEEDED),
    ],
)
def test_the_end_follows_what_was_asked(store, job, asked, move, expected):
    attempt = start(store, job)
    if asked is not None:
        store.move(job.id, asked)
    assert store.end_attempt(attempt.id, attempt.fencing, Ending(move)).state is expected
    assert store.slot_holders() == {}


def test_a_fenced_attempt_can_write_nothing_and_the_next_one_can(store, job):
    attempt = start(store, job)
    token = store.fence(attempt.id)
    assert token > attempt.fencing
    assert store.job(job.id).state is State.RECOVERING
    for write in (
        lambda: store.ingest(attempt.id, attempt.fencing, [{"id": 1, "event": "started"}], 10),
        lambda: store.record_stage(attempt.id, attempt.fencing, "a"),
        lambda: store.publish_model(attempt.id, attempt.fencing, name="m", fingerprint="f", path="/m"),
        lambda: store.attempt_started(attempt.id, attempt.fencing, {}),
        lambda: store.end_attempt(attempt.id, attempt.fencing, STOPPED),
        lambda: store.move(job.id, Move.CANCEL, fencing=attempt.fencing),
    ):
        with pytest.raises(Fenced):
            write()
    assert store.slot_holders() == {("here", 0): attempt.id}  # until it is proven dead
    assert store.stage_results(job.id) == store.models("p") == []
    assert store.end_attempt(attempt.id, token, STOPPED).state is State.QUEUED
    second = start(store, job)
    assert second.fencing > token
    assert second.number == 2
    assert store.ingest(second.id, second.fencing, [{"id": 1, "event": "started"}], 10) == 1
    with pytest.raises(Fenced):
        store.fence(attempt.id)
    with pytest.raises(Fenced):
        store.ingest(attempt.id, second.fencing, [{"id": 2, "event": "started"}], 10)


def test_an_attempt_that_has_ended_can_write_nothing_more(store, job):
    attempt = start(store, job)
    store.end_attempt(attempt.id, attempt.fencing, Ending(Move.SUCCEED))
    with pytest.raises(Fenced):
        store.publish_model(attempt.id, attempt.fencing, name="m", fingerprint="f", path="/m")


def test_counts_and_back_off_are_kept_for_the_next_attempt(store, job):
    attempt = start(store, job)
    waiting = store.end_attempt(
        attempt.id, attempt.fencing, Ending(Move.STOPPED, Reason.INTERNAL, "boom", 1, not_before=5e9, counts=True)
    )
    assert (waiting.state, waiting.retries, waiting.not_before, waiting.reason) == (
        State.QUEUED,
        1,
        5e9,
        Reason.INTERNAL,
    )
    attempt = start(store, job)
    waiting = store.end_attempt(attempt.id, attempt.fencing, Ending(Move.STOPPED, Reason.PREEMPTED, preempted=True))
    assert (waiting.retries, waiting.preemptions, waiting.not_before) == (1, 1, 0.0)


def test_leases_that_nobody_renews_go_to_one_server_with_the_same_token(store, store_url, job):
    attempt = start(store, job)
    assert store.claim_expired("b", 30) == []
    store.renew("me", -1.0)
    assert store.claim_expired("b", 30, hosts=["elsewhere"]) == []
    other = Store(str(store.engine.url.render_as_string(hide_password=False)))
    claims = {}
    gate = threading.Barrier(2)

    def claim(name, its_store):
        gate.wait()
        claims[name] = its_store.claim_expired(name, 30, hosts=["here"])

    threads = [threading.Thread(target=claim, args=each) for each in (("b", store), ("c", other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert sorted(len(found) for found in claims.values()) == [0, 1]
    winner = next(name for name, found in claims.items() if found)
    assert store.lease(job.id).holder == winner
    assert store.ingest(attempt.id, attempt.fencing, [{"id": 1, "event": "started"}], 1) == 1


def test_the_only_server_of_a_host_adopts_what_runs_there(store, job):
    attempt = start(store, job)
    assert store.adopt("b", 30, hosts=["elsewhere"]) == []
    assert [found.id for found, _ in store.adopt("b", 30, hosts=["here"])] == [attempt.id]
    assert [found.id for found, _ in store.live_attempts("b")] == [attempt.id]


def test_a_lease_belongs_to_one_holder_until_it_expires_or_is_released(store):
    first = store.acquire("scheduler", "a", 30)
    assert store.acquire("scheduler", "b", 30) is None
    again = store.acquire("scheduler", "a", 30)
    assert again.fencing == first.fencing + 1
    with pytest.raises(Conflict):
        store.renew_lease(first, 30)
    assert store.renew_lease(again, 60).expires > again.expires
    store.release(first)
    assert store.acquire("scheduler", "b", 30) is None
    store.release(again)
    assert store.acquire("scheduler", "b", 30).fencing == again.fencing + 1


def test_unknown_attempts_are_not_found(store):
    with pytest.raises(NotFound, match="there is no attempt 'attempt-x'"):
        store.attempt("attempt-x")
