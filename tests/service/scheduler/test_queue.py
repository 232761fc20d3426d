import math
import time
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from service.scheduler.queue import Queue, WaitingJob
from tests.service.scheduler.worlds import NOW, queues


def lined_up(queue):
    """(priority, project, what it needs) -> ids in order."""
    return {
        (priority, project, needs): [job.id for _, job in line]
        for priority, projects in queue.levels.items()
        for project, lines in projects.items()
        for needs, line in lines.items()
    }


@settings(max_examples=100, deadline=None)
@given(queues(), st.data())
def test_jobs_that_come_change_and_go_leave_what_a_new_queue_would_have(jobs, data):
    queue = Queue()
    current = {}
    for job in jobs:
        queue.add(job)
        current[job.id] = job
        change = data.draw(st.sampled_from(["none", "priority", "wake", "remove", "again"]))
        other = data.draw(st.sampled_from(sorted(current))) if current else None
        if change == "priority":
            current[other] = replace(current[other], priority=current[other].priority + 1, waits_for=frozenset())
            queue.add(current[other])
        elif change == "wake":
            queue.wake(NOW)
        elif change == "remove":
            assert queue.remove(other) == current.pop(other)
        elif change == "again":
            queue.add(current[other])
    queue.wake(NOW)
    fresh = Queue(current.values())
    fresh.wake(NOW)
    assert lined_up(queue) == lined_up(fresh)
    assert list(queue.priorities()) == sorted(queue.levels, reverse=True)
    assert len(queue) == len(current)
    assert {job.id for job in queue.expired(NOW)} == {job.id for job in current.values() if job.deadline < NOW}
    assert queue.awaited() == fresh.awaited()


def test_a_job_in_a_back_off_lines_up_when_it_is_over_and_only_once():
    queue = Queue([WaitingJob("a", not_before=5.0)])
    assert lined_up(queue) == {}
    assert queue.next_wake() == 5.0
    queue.wake(5.0)
    queue.wake(6.0)
    assert list(lined_up(queue).values()) == [["a"]]
    assert queue.next_wake() == math.inf
    queue.remove("a")
    assert lined_up(queue) == {}


def test_dependents_are_known_until_they_wait_no_longer():
    waiting = WaitingJob("b", waits_for=frozenset({"a"}))
    queue = Queue([waiting])
    assert queue.dependents("a") == [waiting]
    queue.add(replace(waiting, waits_for=frozenset()))
    assert queue.dependents("a") == []
    assert list(lined_up(queue).values()) == [["b"]]


def test_removing_what_is_not_there_is_nothing():
    assert Queue().remove("a") is None


def test_jobs_whose_deadlines_pass_together_are_told_once_each_the_earliest_first_and_soon():
    jobs = [WaitingJob(f"job-{number:05d}", deadline=float(number)) for number in range(20_000)]
    queue = Queue(reversed(jobs))
    for job in jobs[:10]:  # leaves an outdated entry of each
        queue.add(replace(job, priority=1))
        queue.add(job)
    begun = time.perf_counter()
    assert queue.expired(30_000.0) == jobs
    assert queue.expired(30_000.0) == jobs, "they stay until they are removed"
    assert time.perf_counter() - begun < 5.0
    assert queue.expired(5.0) == jobs[:5]
