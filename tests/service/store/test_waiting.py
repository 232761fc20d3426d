from service.jobs.job import Host, JobRequest, Part, Resources, Slot
from service.jobs.states import Ending, Move, State
from service.store.tables import now


def test_the_scheduler_sees_what_waits_and_what_holds_resources_and_where(store):
    store.report_host(Host("here", slots=(Slot(0),)))
    needs = Resources(gpus=1, gpu_kind="x", memory=5)
    first = store.submit(
        JobRequest("name: x\n", "p", priority=4, resources=needs, deadline=9e9, expected_seconds=60.0)
    )[0]
    second = store.submit(JobRequest("name: x\n", "p", depends_on=(first.id,)))[0]
    over = store.submit(JobRequest("name: x\n", "p"))[0]
    store.move(over.id, Move.CANCEL)
    attempt = store.start(first.id, (Part("here", (0,)),), executor="local", holder="me", lease_seconds=30)
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
    assert (running.placement, running.began, running.attempt) == ((Part("here", (0,)),), attempt.created, attempt.id)
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
    attempt = store.start(second.id, (Part("here"),), executor="local", holder="me", lease_seconds=30)
    store.end_attempt(attempt.id, attempt.fencing, Ending(Move.SUCCEED))
    changed = store.changed_since(moment)
    assert [(job.id, job.state, job.placement) for job in changed] == [(second.id, State.SUCCEEDED, ())]
    assert store.states_of([first.id, second.id, "job-x"]) == {first.id: State.QUEUED, second.id: State.SUCCEEDED}
