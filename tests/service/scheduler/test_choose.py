import math
import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.jobs.job import GpuSlot, Host, HostShare, Resources
from service.scheduler.capacity import Capacity
from service.scheduler.choose import choose
from service.scheduler.queue import Decision, Preemption, Queue, RunningJob, Share, Start, WaitingJob
from tests.covering import examples
from tests.service.scheduler.worlds import (
    NOW,
    clusters,
    earliest,
    hosts,
    obvious_place,
    picture,
    queues,
    seconds,
    usages,
)

ONE = Resources(gpus=1)


def gpu_host(name="h", gpus=4, cpus=16, kind="H200"):
    return Host(name, cpus=cpus, memory=64, slots=tuple(GpuSlot(index, kind, 80) for index in range(gpus)))


def decided(machines, running, jobs, usage=None):
    return choose(jobs, Capacity(machines, running), NOW, usage or {})


def started(running, decision, jobs):
    """The running jobs after a decision, in the order in which they started."""
    by_id = {job.id: job for job in jobs}
    return [
        *running,
        *(
            RunningJob(start.job, start.placement, job.project, job.priority, job.resources, NOW, job.expected_seconds)
            for start in decision.starts
            for job in [by_id[start.job]]
        ),
    ]


def eligible(job):
    return not job.waits_for and job.not_before <= NOW <= job.deadline


@examples(30, 120)
@given(clusters(), queues(), usages)
def test_nothing_is_given_twice_and_every_job_gets_all_it_needs_or_nothing(cluster, jobs, usage):
    machines, running = cluster
    decision = decided(machines, running, jobs, usage)
    by_name = {host.name: host for host in machines}
    by_id = {job.id: job for job in jobs}
    assert len({start.job for start in decision.starts}) == len(decision.starts)
    held = list(running)
    for start in decision.starts:
        job = by_id[start.job]
        needs = job.resources
        assert len({part.host for part in start.placement}) == len(start.placement) == needs.hosts
        for part in start.placement:
            host = by_name[part.host]
            assert host.state == "up"
            assert len(set(part.gpus)) == len(part.gpus) == needs.gpus
            assert all(needs.suits(slot) for slot in host.slots if slot.index in part.gpus)
            alone = replace(needs, hosts=1, gpus=0)
            assert obvious_place([host], held, alone) is not None
        held.append(RunningJob(job.id, start.placement, resources=needs))
        for host in machines:
            assert (
                sum(job.resources.cpus for job in held for part in job.placement if part.host == host.name) <= host.cpus
            )
    for host in machines:
        taken = [index for job in held for part in job.placement if part.host == host.name for index in part.gpus]
        assert len(taken) == len(set(taken))
        assert (
            sum(job.resources.memory for job in held for part in job.placement if part.host == host.name) <= host.memory
        )


@examples(30, 100)
@given(clusters(), queues(), usages)
def test_a_decision_changes_nothing_and_depends_on_no_order_of_the_queue(cluster, jobs, usage):
    machines, running = cluster
    capacity, queue = Capacity(machines, running), Queue(jobs)
    before = picture(capacity)
    first = choose(queue, capacity, NOW, usage)
    assert picture(capacity) == before
    assert choose(queue, capacity, NOW, usage) == first
    shuffled = random.Random(0).sample(jobs, len(jobs))
    assert choose(shuffled, Capacity(machines, running[::-1]), NOW, usage) == first


@examples(30, 100)
@given(clusters(), queues(), usages)
def test_jobs_in_a_back_off_or_waiting_for_another_or_past_their_deadline_do_not_start(cluster, jobs, usage):
    decision = decided(*cluster, jobs, usage)
    by_id = {job.id: job for job in jobs}
    assert all(eligible(by_id[start.job]) for start in decision.starts)
    late = {job.id for job in jobs if job.deadline < NOW}
    assert late <= {job.job for job in decision.unplaceable}


@examples(30, 100)
@given(clusters(), queues(), usages)
def test_quotas_of_projects_hold(cluster, jobs, usage):
    machines, running = cluster
    after = started(running, decided(machines, running, jobs, usage), jobs)
    for project, share in usage.items():
        before, now = ([job for job in each if job.project == project] for each in (running, after))
        if share.max_running is not None:
            assert len(now) <= max(share.max_running, len(before))
        if share.max_gpus is not None:
            gpus = [sum(job.resources.total_gpus for job in each) for each in (before, now)]
            assert gpus[1] <= max(share.max_gpus, gpus[0])


@examples(30, 100)
@given(clusters(), queues())
def test_a_job_is_passed_over_only_by_jobs_that_need_something_else_or_are_shorter(cluster, jobs):
    decision = decided(*cluster, jobs)
    chosen = {start.job for start in decision.starts}
    for job in jobs:
        if job.id in chosen or not eligible(job):
            continue
        for other in jobs:
            if other.id in chosen and other.resources == job.resources and other.priority < job.priority:
                assert other.expected_seconds < job.expected_seconds


@examples(30, 100)
@given(clusters(), queues())
def test_when_nothing_waits_at_the_head_nothing_that_could_start_was_left(cluster, jobs):
    machines, running = cluster
    decision = decided(machines, running, jobs)
    after = started(running, decision, jobs)
    chosen = {start.job for start in decision.starts}
    left = [job for job in jobs if eligible(job) and job.id not in chosen]
    if decision.reserved is None:
        assert all(job.id in {found.job for found in decision.unplaceable} for job in left)
    for job in left:
        if job.id == decision.reserved:
            assert obvious_place(machines, after, job.resources) is None


@examples(30, 120)
@given(clusters(priorities=st.just(9), may_stop=False), queues(priorities=st.just(0)), st.data())
def test_what_is_filled_in_never_delays_the_job_at_the_head(cluster, jobs, data):
    machines, running = cluster
    head = WaitingJob(
        "head",
        priority=5,
        resources=data.draw(
            st.builds(Resources, gpus=st.integers(0, 4), cpus=st.integers(1, 6), hosts=st.sampled_from([1, 2]))
        ),
        expected_seconds=data.draw(seconds),
    )
    decision = decided(machines, running, [head, *jobs])
    alone = earliest(machines, running, head.resources)
    after = started(running, decision, [head, *jobs])
    if alone == NOW:
        assert decision.starts[0].job == "head"
    elif alone < math.inf:
        assert decision.reserved == "head"
        assert earliest(machines, after, head.resources) <= alone


@examples(30, 120)
@given(clusters(), queues(priorities=st.integers(0, 5)))
def test_only_lower_priorities_make_room_and_none_of_them_needlessly(cluster, jobs):
    machines, running = cluster
    decision = decided(machines, running, jobs)
    by_id = {job.id: job for job in [*running, *jobs]}
    assert len({preemption.job for preemption in decision.preemptions}) == len(decision.preemptions)
    for preemption in decision.preemptions:
        assert by_id[preemption.job].priority < by_id[preemption.favours].priority
        assert preemption.job in {job.id for job in running if not job.stopping}
        assert preemption.favours not in {start.job for start in decision.starts}


@examples(30, 120)
@given(
    clusters(),
    st.builds(
        WaitingJob,
        st.just("w"),
        priority=st.integers(0, 4),
        resources=st.builds(Resources, gpus=st.integers(0, 4), cpus=st.integers(0, 4), hosts=st.sampled_from([1, 2])),
    ),
)
def test_one_job_alone_preempts_just_what_it_needs_and_only_if_it_helps(cluster, job):
    machines, running = cluster
    decision = decided(machines, running, [job])
    gone = {preemption.job for preemption in decision.preemptions}
    staying = [each for each in running if not each.stopping and each.id not in gone]
    if gone:
        assert obvious_place(machines, running, job.resources) is None
        assert obvious_place(machines, staying, job.resources) is not None
        for back in (each for each in running if each.id in gone):
            assert obvious_place(machines, [*staying, back], job.resources) is None
    elif not decision.starts and not decision.unplaceable:
        waiting = [each for each in running if not each.stopping]
        stronger = [each for each in waiting if each.priority >= job.priority]
        assert obvious_place(machines, waiting, job.resources) or not obvious_place(machines, stronger, job.resources)


@examples(30, 80)
@given(hosts(), queues())
@example(
    [Host("h0", cpus=1, memory=0, state="draining")],
    [
        WaitingJob("w00", "p", resources=Resources(cpus=1)),
        WaitingJob("w01", "p", resources=Resources(cpus=0, memory=1), submitted=1),
    ],
)
def test_a_job_is_hopeless_only_if_empty_hosts_could_not_hold_it(machines, jobs):
    decision = decided(machines, [], jobs)
    up = [replace(host, state="up") for host in machines]
    hopeless = {found.job for found in decision.unplaceable}
    for job in jobs:
        if eligible(job):
            assert (job.id in hopeless) is (obvious_place(up, [], job.resources) is None)


@given(st.integers(1, 12), st.sampled_from([1.0, 2.0, 3.0]))
def test_projects_share_by_weight(gpus, weight):
    machines = [gpu_host(gpus=gpus, cpus=100)]
    jobs = [
        WaitingJob(f"{project}{number:02}", project, resources=ONE, submitted=number)
        for project in "pq"
        for number in range(12)
    ]
    decision = decided(machines, [], jobs, {"q": Share(weight=weight)})
    p, q = (sum(start.job[0] == project for start in decision.starts) for project in "pq")
    assert p + q == gpus
    assert abs(q / weight - p) <= 1  # within one job of proportional


def test_a_project_that_holds_much_waits_until_the_other_has_caught_up():
    running = [RunningJob(f"r{index}", (HostShare("h", (index,)),), "p", resources=ONE, began=0) for index in range(2)]
    jobs = [WaitingJob(f"p{n}", "p", resources=ONE) for n in range(4)] + [
        WaitingJob(f"q{n}", "q", resources=ONE, submitted=9) for n in range(4)
    ]
    assert [start.job for start in decided([gpu_host()], running, jobs).starts] == ["q0", "q1"]


def test_within_a_project_the_nearest_deadline_then_the_oldest_comes_first():
    jobs = [
        WaitingJob("old", resources=ONE, submitted=1),
        WaitingJob("new", resources=ONE, submitted=2),
        WaitingJob("urgent", resources=ONE, submitted=3, deadline=NOW + 5),
    ]
    assert [start.job for start in decided([gpu_host()], [], jobs).starts] == ["urgent", "old", "new"]


def test_small_jobs_fill_the_fullest_host_so_that_a_large_one_still_fits():
    machines = [gpu_host("a"), gpu_host("b")]
    running = [RunningJob("r", (HostShare("b", (0,)),), resources=ONE)]
    jobs = [
        WaitingJob("small", resources=Resources(gpus=3), submitted=0),
        WaitingJob("large", resources=Resources(gpus=4), submitted=1),
    ]
    decision = decided(machines, running, jobs)
    assert decision.starts == (
        Start("small", (HostShare("b", (1, 2, 3)),)),
        Start("large", (HostShare("a", (0, 1, 2, 3)),)),
    )


def test_what_needs_no_gpu_leaves_hosts_with_gpus_alone():
    decision = decided([gpu_host("a"), Host("b", cpus=1)], [], [WaitingJob("x")])
    assert decision.starts == (Start("x", (HostShare("b"),)),)


def test_a_short_job_fills_the_gap_and_a_long_one_does_not():
    running = [
        RunningJob(
            "r",
            (HostShare("h", (0, 1, 2)),),
            resources=Resources(gpus=3),
            began=NOW - 10,
            expected_seconds=60,
            priority=9,
        )
    ]
    head = WaitingJob("head", priority=5, resources=Resources(gpus=4))
    for duration, expected in ((50.0, ("fill",)), (51.0, ()), (math.inf, ())):
        decision = decided([gpu_host()], running, [head, WaitingJob("fill", resources=ONE, expected_seconds=duration)])
        assert tuple(start.job for start in decision.starts) == expected
        assert decision.reserved == "head"


def test_a_long_job_may_run_beside_what_the_head_needs():
    running = [
        RunningJob(
            "r", (HostShare("h", (0, 1)),), resources=Resources(gpus=2), began=NOW, expected_seconds=60, priority=9
        )
    ]
    head = WaitingJob("head", priority=5, resources=Resources(gpus=3))
    jobs = [head, WaitingJob("first", resources=ONE, submitted=1), WaitingJob("second", resources=ONE, submitted=2)]
    assert [start.job for start in decided([gpu_host()], running, jobs).starts] == ["first"]


def test_without_estimates_the_head_is_not_starved_by_small_jobs():
    """Somewhere a running job ends; the GPU that comes free is kept for the head although small jobs wait."""
    running = [RunningJob(f"r{index}", (HostShare("h", (index,)),), resources=ONE, priority=9) for index in range(3)]
    head = WaitingJob("head", priority=5, resources=Resources(gpus=4))
    decision = decided([gpu_host()], running, [head, WaitingJob("small", resources=ONE, expected_seconds=1)])
    assert decision == Decision(reserved="head")


def test_the_youngest_job_of_the_lowest_priority_makes_room():
    running = [
        RunningJob("low-old", (HostShare("h", (0,)),), resources=ONE, began=1, priority=0),
        RunningJob("low-new", (HostShare("h", (1,)),), resources=ONE, began=2, priority=0),
        RunningJob("middle", (HostShare("h", (2,)),), resources=ONE, began=3, priority=1),
        RunningJob("high", (HostShare("h", (3,)),), resources=ONE, began=4, priority=2),
    ]
    decision = decided([gpu_host()], running, [WaitingJob("w", priority=2, resources=ONE)])
    assert decision.preemptions == (Preemption("low-new", "w"),)
    assert decision.starts == ()
    stopping = [replace(job, stopping=job.id == "low-new") for job in running]
    assert decided([gpu_host()], stopping, [WaitingJob("w", priority=2, resources=ONE)]).preemptions == ()
    two = [WaitingJob("w", priority=2, resources=ONE), WaitingJob("x", priority=2, resources=ONE)]
    assert [each.job for each in decided([gpu_host()], stopping, two).preemptions] == ["low-old"]


def test_what_a_stopping_job_frees_is_kept_for_the_one_it_stops_for():
    running = [
        RunningJob("r", (HostShare("h", (0, 1, 2)),), resources=Resources(gpus=3), began=1, stopping=True),
    ]
    jobs = [
        WaitingJob("head", priority=2, resources=Resources(gpus=4)),
        WaitingJob("small", priority=0, resources=ONE, expected_seconds=1),
    ]
    assert decided([gpu_host()], running, jobs) == Decision(reserved="head")


def test_equal_priority_never_preempts():
    running = [RunningJob("r", (HostShare("h", (0, 1, 2, 3)),), resources=Resources(gpus=4), priority=2)]
    assert decided([gpu_host()], running, [WaitingJob("w", priority=2, resources=ONE)]).preemptions == ()


@pytest.mark.parametrize(
    ("resources", "sentence"),
    [
        (
            Resources(gpus=8),
            "needs 8 GPUs, 1 core; the only host has 4 GPUs (H200, 7.451e-08 GiB), 16 cores and 5.96e-08 GiB of memory",
        ),
        (Resources(gpus=1, gpu_kind="b200", cpus=2), "needs 1 GPU of kind 'b200', 2 cores; the only host has"),
        (Resources(hosts=2), "needs 1 core on each of 2 hosts; the only host has"),
        (Resources(memory=3 << 30), "needs 1 core, 3 GiB of memory; the only host has"),
    ],
)
def test_a_hopeless_job_is_told_what_it_needs_and_what_there_is(resources, sentence):
    (found,) = decided([gpu_host()], [], [WaitingJob("w", resources=resources)]).unplaceable
    assert found.message.startswith(sentence)


def test_a_hopeless_job_is_told_once_and_too_when_its_project_is_at_its_limit_or_nothing_is_free():
    running = [
        RunningJob(
            "r", (HostShare("h", (0, 1, 2, 3)),), "p", resources=Resources(gpus=4, cpus=16), priority=9, began=NOW
        )
    ]
    jobs = [
        WaitingJob("head", "q", priority=5, resources=ONE),
        WaitingJob("hopeless", "p", priority=1, resources=Resources(gpus=8)),
        WaitingJob("late", "p", priority=1, resources=Resources(gpus=8), deadline=NOW - 1),
        WaitingJob("asleep", "p", priority=1, resources=Resources(gpus=8), not_before=NOW + 1),
    ]
    decision = decided([gpu_host()], running, jobs, {"p": Share(max_running=1)})
    assert [found.job for found in decision.unplaceable] == ["late", "hopeless"]
    assert decision.reserved == "head"


def test_without_any_host_jobs_wait():
    assert decided([], [], [WaitingJob("w")]).unplaceable == ()


def test_a_draining_host_gets_nothing_new_and_is_waited_for():
    decision = decided([replace(gpu_host(), state="draining")], [], [WaitingJob("w")])
    assert decision == Decision(reserved="w")
