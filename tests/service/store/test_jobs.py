import threading

import pytest

from service.jobs.job import GpuSlot, Host, HostShare, JobRequest, Resources
from service.jobs.states import Ending, IllegalTransition, Move, Reason, State
from service.store.errors import Conflict, NotFound, QuotaExceeded
from service.store.tables import now

RECIPE = "name: tiny\nseed: 1\n"


def submitted(store, project="p", **fields):
    return store.submit(JobRequest(RECIPE, project, name="tiny", **fields))[0]


def test_a_job_comes_back_as_it_was_sent(store):
    request = JobRequest(
        RECIPE,
        "p",
        name="tiny",
        overrides=("seed=2",),
        priority=3,
        resources=Resources(gpus=2, gpu_kind="h200", memory=1 << 40),
        deadline=2e9,
        expected_seconds=60.0,
        max_retries=1,
        kind="openai",
        submitted_by="token-1",
        secrets=("HF_TOKEN",),
        openai={"suffix": "é\U0001f600"},
    )
    job, created = store.submit(request)
    assert created
    assert store.job(job.id) == job
    assert job.request == request
    assert (job.state, job.priority, job.attempts) == (State.QUEUED, 3, 0)
    assert [(event.id, event.event, event.fields["state"]) for event in store.events_after(job.id)] == [
        (1, "state", "queued")
    ]


def test_the_same_key_and_request_is_the_same_job_and_another_request_is_refused(store):
    first, created = store.submit(JobRequest(RECIPE, "p", idempotency_key="k"))
    again, created_again = store.submit(JobRequest(RECIPE, "p", idempotency_key="k", submitted_by="another token"))
    assert (created, created_again, again.id) == (True, False, first.id)
    with pytest.raises(Conflict, match=f"'k' was sent before with another request, which became {first.id}"):
        store.submit(JobRequest(RECIPE + "#", "p", idempotency_key="k"))
    other, created_there = store.submit(JobRequest(RECIPE, "q", idempotency_key="k"))
    assert created_there
    assert other.id != first.id


def test_many_threads_with_one_key_make_one_job(store):
    found = []
    gate = threading.Barrier(6)

    def submit():
        gate.wait()
        found.append(store.submit(JobRequest(RECIPE, "p", idempotency_key="k")))

    threads = [threading.Thread(target=submit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job.id for job, _ in found}) == 1
    assert sorted(created for _, created in found) == [False] * 5 + [True]
    assert store.count()[State.QUEUED] == 1


def test_the_limit_of_waiting_jobs_is_the_projects_own_or_the_servers(store):
    submitted(store)
    with pytest.raises(QuotaExceeded, match="project 'p' has 1 jobs waiting, which is its limit"):
        store.submit(JobRequest(RECIPE, "p"), max_queued=1)
    store.set_project("p", max_queued=2)
    store.submit(JobRequest(RECIPE, "p"), max_queued=1)
    with pytest.raises(QuotaExceeded):
        store.submit(JobRequest(RECIPE, "p"), max_queued=10)


def test_a_job_depends_on_jobs_of_its_own_project_only(store):
    first, foreign = submitted(store), submitted(store, "q")
    assert submitted(store, depends_on=(first.id,)).request.depends_on == (first.id,)
    with pytest.raises(NotFound, match=foreign.id):
        submitted(store, depends_on=(foreign.id,))


def test_another_projects_job_is_not_found_by_any_call(store):
    job = submitted(store)
    for call in (
        lambda: store.job(job.id, "q"),
        lambda: store.move(job.id, Move.CANCEL, project="q"),
        lambda: store.set_priority(job.id, 1, "q"),
        lambda: store.update_openai(job.id, {}, "q"),
        lambda: store.events_after(job.id, project="q"),
        lambda: store.attempts(job.id, "q"),
        lambda: store.stage_results(job.id, "q"),
        lambda: store.job("job-\0nonsense"),
    ):
        with pytest.raises(NotFound):
            call()
    assert store.jobs("q") == []
    assert store.job(job.id, "p") == store.job(job.id) == job


def test_pages_follow_each_other_without_gaps_or_repeats_in_both_directions(store):
    made = [submitted(store).id for _ in range(7)]
    for newest_first in (True, False):
        pages, after = [], None
        while page := store.jobs("p", after=after, limit=3, newest_first=newest_first):
            pages.append([job.id for job in page])
            after = page[-1].id
        assert [len(page) for page in pages] == [3, 3, 1]
        assert [each for page in pages for each in page] == sorted(made, reverse=newest_first)


def test_lists_are_filtered_by_state_kind_name_and_part_of_the_name(store):
    first = submitted(store)
    second = store.submit(JobRequest(RECIPE, "p", name="Fine_Tune 100%", kind="openai"))[0]
    store.move(first.id, Move.CANCEL)
    assert [job.id for job in store.jobs(states=[State.CANCELLED])] == [first.id]
    assert [job.id for job in store.jobs(kind="openai")] == [second.id]
    assert [job.id for job in store.jobs(name="tiny")] == [first.id]
    assert [job.id for job in store.jobs(search="tune 100%")] == [second.id]
    assert store.jobs(search="tiny%") == store.jobs(search="fine-tune") == []
    assert {state: count for state, count in store.count("p").items() if count} == {State.CANCELLED: 1, State.QUEUED: 1}


def test_a_move_writes_state_reason_and_event_together_and_a_refused_one_nothing(store):
    job = submitted(store)
    failed = store.move(job.id, Move.FAIL, reason=Reason.NO_RESOURCES, message="no host\0 has it")
    assert (failed.state, failed.reason, failed.message) == (State.FAILED, Reason.NO_RESOURCES, "no host has it")
    assert failed.finished is not None
    with pytest.raises(IllegalTransition):
        store.move(job.id, Move.PAUSE)
    events = store.events_after(job.id)
    assert [event.fields["state"] for event in events] == ["queued", "failed"]
    assert events[-1].fields["reason"] == "no_resources"
    assert store.job(job.id).last_event == events[-1].id == 2


def test_a_retry_begins_with_a_clean_record(store):
    job = submitted(store)
    store.move(job.id, Move.FAIL, reason=Reason.NO_RESOURCES, message="x")
    again = store.move(job.id, Move.RETRY)
    assert (again.state, again.reason, again.message, again.finished, again.retries) == (
        State.QUEUED,
        None,
        "",
        None,
        0,
    )


def test_a_move_meant_for_another_state_is_refused(store):
    job = submitted(store)
    with pytest.raises(Conflict, match="the job is queued, not running or starting"):
        store.move(job.id, Move.CANCEL, expect=[State.RUNNING, State.STARTING])
    assert store.job(job.id).state is State.QUEUED


def test_a_move_cannot_start_a_job_or_set_what_is_not_its_own(store):
    job = submitted(store)
    with pytest.raises(ValueError, match="use start or end_attempt"):
        store.move(job.id, Move.START)
    with pytest.raises(TypeError, match="move cannot set recipe"):
        store.move(job.id, Move.CANCEL, recipe="other")


def test_of_many_threads_that_cancel_one_wins(store):
    job = submitted(store)
    outcomes = []
    gate = threading.Barrier(5)

    def cancel():
        gate.wait()
        try:
            outcomes.append(store.move(job.id, Move.CANCEL).state)
        except IllegalTransition:
            outcomes.append(None)

    threads = [threading.Thread(target=cancel) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(State.CANCELLED) == 1
    assert [event.id for event in store.events_after(job.id)] == [1, 2]


def test_a_priority_changes_the_job_and_not_the_request_until_it_is_over(store):
    job = submitted(store)
    changed = store.set_priority(job.id, 7)
    assert (changed.priority, changed.request.priority) == (7, 0)
    assert store.events_after(job.id)[-1].fields == {"priority": 7, "from": 0}
    store.move(job.id, Move.CANCEL)
    with pytest.raises(Conflict, match="the job is cancelled; its priority no longer matters"):
        store.set_priority(job.id, 1)


def test_what_openai_keeps_is_merged(store):
    job = submitted(store, openai={"a": 1})
    assert store.update_openai(job.id, {"b": [2]}).request.openai == {"a": 1, "b": [2]}
    assert store.job(job.id).request.openai == {"a": 1, "b": [2]}


@pytest.mark.parametrize("limit", [1, 2, 5, 7])
def test_the_limit_is_exact_although_not_every_submission_counts(store, limit):
    for _ in range(limit):
        store.submit(JobRequest(RECIPE, "p"), max_queued=limit)
    with pytest.raises(QuotaExceeded):
        store.submit(JobRequest(RECIPE, "p"), max_queued=limit)
    assert store.count("p")[State.QUEUED] == limit


def test_the_scheduler_sees_what_waits_and_what_holds_resources_and_where(store):
    store.report_host(Host("here", slots=(GpuSlot(0),)))
    needs = Resources(gpus=1, gpu_kind="x", memory=5)
    first = store.submit(
        JobRequest("name: x\n", "p", priority=4, resources=needs, deadline=9e9, expected_seconds=60.0)
    )[0]
    second = store.submit(JobRequest("name: x\n", "p", depends_on=(first.id,)))[0]
    over = store.submit(JobRequest("name: x\n", "p"))[0]
    store.move(over.id, Move.CANCEL)
    attempt = store.start(first.id, (HostShare("here", (0,)),), executor="local", holder="me", lease_seconds=30)
    running, waiting = store.standing()
    assert (
        running.id,
        running.state,
        running.priority,
        running.resources,
        running.deadline,
        running.expected_seconds,
    ) == (
        first.id,
        State.STARTING,
        4,
        needs,
        9e9,
        60.0,
    )
    assert (running.placement, running.began, running.attempt) == (
        (HostShare("here", (0,)),),
        attempt.created,
        attempt.id,
    )
    assert (waiting.id, waiting.state, waiting.depends_on, waiting.placement) == (
        second.id,
        State.QUEUED,
        (first.id,),
        (),
    )


def test_what_changed_includes_what_has_ended_and_leaves_out_what_did_not_change(store):
    first = store.submit(JobRequest("name: x\n", "p"))[0]
    second = store.submit(JobRequest("name: x\n", "p"))[0]
    moment = now()
    attempt = store.start(second.id, (HostShare("here"),), executor="local", holder="me", lease_seconds=30)
    store.end_attempt(attempt.id, attempt.fencing, Ending(Move.SUCCEED))
    changed = store.changed_since(moment)
    assert [(job.id, job.state, job.placement) for job in changed] == [(second.id, State.SUCCEEDED, ())]
    assert store.states_of([first.id, second.id, "job-x"]) == {first.id: State.QUEUED, second.id: State.SUCCEEDED}
