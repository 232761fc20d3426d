"""Small clusters and queues for hypothesis, and the slow, obvious arithmetic that `choose` is held against."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

from hypothesis import strategies as st

from service.jobs.job import GpuSlot, Host, HostShare, Resources
from service.scheduler.capacity import Capacity
from service.scheduler.queue import RunningJob, Share, WaitingJob

NOW = 1000.0
KINDS = ("H200", "A100")
PROJECTS = ("p", "q", "r")


LEVELS = st.integers(0, 3)


@st.composite
def hosts(draw, most=4):
    """Some hosts, equal or not, one of them perhaps draining."""
    found = []
    for number in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from(KINDS))
        slots = tuple(GpuSlot(index, kind, 80) for index in range(draw(st.integers(0, 4))))
        state = "draining" if draw(st.integers(0, 9)) == 0 else "up"
        found.append(
            Host(f"h{number}", cpus=draw(st.integers(1, 6)), memory=draw(st.integers(0, 8)), slots=slots, state=state)
        )
    return found


needs = st.builds(
    Resources,
    gpus=st.integers(0, 4),
    gpu_kind=st.sampled_from([None, None, "h200", "a100"]),
    cpus=st.integers(0, 3),
    memory=st.integers(0, 3),
    hosts=st.sampled_from([1, 1, 1, 2]),
)
seconds = st.one_of(st.just(math.inf), st.integers(1, 50).map(float))


@st.composite
def queues(draw, most=10, priorities=LEVELS):
    """Jobs that wait, some in a back-off, some for another job, some past their deadline."""
    found = []
    for number in range(draw(st.integers(0, most))):
        found.append(
            WaitingJob(
                f"w{number:02}",
                project=draw(st.sampled_from(PROJECTS)),
                priority=draw(priorities),
                resources=draw(needs),
                submitted=float(draw(st.integers(0, 5))),
                not_before=draw(st.sampled_from([0.0, 0.0, 0.0, NOW, NOW + 1])),
                deadline=draw(st.sampled_from([math.inf, math.inf, NOW - 1, NOW + 9])),
                expected_seconds=draw(seconds),
                waits_for=draw(st.sampled_from([frozenset(), frozenset(), frozenset({"other"})])),
            )
        )
    return found


@st.composite
def clusters(draw, priorities=LEVELS, may_stop=True):
    """Hosts with jobs on them, placed one by one where the obvious arithmetic finds room."""
    machines = draw(hosts())
    running: list[RunningJob] = []
    for number in range(draw(st.integers(0, 6))):
        resources = draw(needs)
        placement = obvious_place(machines, running, resources)
        if placement is not None:
            running.append(
                RunningJob(
                    f"r{number:02}",
                    placement,
                    project=draw(st.sampled_from(PROJECTS)),
                    priority=draw(priorities),
                    resources=resources,
                    began=NOW - draw(st.integers(0, 20)),
                    expected_seconds=draw(seconds),
                    stopping=may_stop and draw(st.integers(0, 5)) == 0,
                )
            )
    return machines, running


usages = st.dictionaries(
    st.sampled_from(PROJECTS),
    st.builds(
        Share,
        weight=st.sampled_from([0.5, 1.0, 3.0]),
        max_gpus=st.one_of(st.none(), st.integers(0, 6)),
        max_running=st.one_of(st.none(), st.integers(0, 4)),
    ),
)


def left_on(host, running):
    """(cores, memory, indices of GPUs) that are free on a host, counted from nothing."""
    cpus, memory, gpus = host.cpus, host.memory, {slot.index for slot in host.slots}
    for job in running:
        for part in job.placement:
            if part.host == host.name:
                cpus -= job.resources.cpus
                memory -= job.resources.memory
                assert gpus >= set(part.gpus), "a GPU is given twice"
                gpus -= set(part.gpus)
    return cpus, memory, gpus


def obvious_part(host, running, resources):
    """The GPUs of a part on this host; None when there is no room."""
    cpus, memory, gpus = left_on(host, running)
    suiting = [slot.index for slot in host.slots if slot.index in gpus and resources.suits(slot)]
    fits = (
        host.state == "up" and cpus >= resources.cpus and memory >= resources.memory and len(suiting) >= resources.gpus
    )
    return tuple(suiting[: resources.gpus]) if fits else None


def obvious_place(machines, running, resources):
    """A placement found by trying every combination of hosts; None when there is none."""
    for chosen in combinations(machines, resources.hosts):
        parts = [(host, obvious_part(host, running, resources)) for host in chosen]
        if all(gpus is not None for _, gpus in parts):
            return tuple(HostShare(host.name, gpus) for host, gpus in parts)
    return None


def earliest(machines, running, resources):
    """When a job could start if nothing else did: now, or when some of the running ones have ended; inf when never."""
    ends = {
        job.id: max(NOW + 0.001, job.ends) for job in running
    }  # one that is overdue may end at any moment, but has not
    for moment in sorted({NOW, *ends.values()} - {math.inf}):
        if obvious_place(machines, [job for job in running if ends[job.id] > moment], resources):
            return moment
    return math.inf


def picture(capacity: Capacity):
    """Everything that a Capacity knows, to see whether it changed."""
    rooms = {name: (room.cpus, room.memory, tuple(room.gpus)) for name, room in capacity.rooms.items()}
    by_priority = {level: jobs for level, jobs in capacity.by_priority.items() if jobs}
    buckets = {
        shape: {key: list(numbers) for key, numbers in make.buckets.items() if numbers}
        for shape, make in capacity._makes.items()
    }
    held = {project: replace(amount) for project, amount in capacity.projects.items()}
    return rooms, dict(capacity.running), held, list(capacity.by_end), by_priority, buckets
