"""Who starts now, and where: a pure function of the queue, the hosts, the time and the projects' shares.

Order: the higher priority first; at equal priority the project that holds least for its weight (dominant resource
fairness, Ghodsi et al. 2011, "Dominant Resource Fairness", NSDI); within a project the nearest deadline, then the
oldest. A job gets all of its hosts at once or none. The first that does not fit takes the place of jobs of strictly
lower priority, or has the hosts that come free first reserved; what comes after it may start if it delays neither.

A job that the hosts could not hold if nothing ran on them, whether they are up or not, is told so by the first decision
that sees it, whatever else waits or runs. Without any host jobs wait.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum, auto

from service.jobs.job import Placement, Resources
from service.scheduler.capacity import Capacity, Held
from service.scheduler.preemption import Reservations, can_preempt, make_room
from service.scheduler.queue import (
    Decision,
    Line,
    Order,
    Preemption,
    Queue,
    RunningJob,
    Share,
    Start,
    Unplaceable,
    Usage,
    WaitingJob,
)

RESERVATIONS = 8
"""Jobs for which hosts are kept at once, each on hosts of its own."""
PREEMPTIONS = 64
"""Jobs that may take the place of others in one decision."""
DEPTH = 1000
"""Jobs that are looked at after the first that does not fit."""


def choose(jobs: Iterable[WaitingJob] | Queue, capacity: Capacity, now: float, usage: Usage) -> Decision:
    """Decide. `capacity` is the same afterwards as before; the caller applies the decision.

    A Queue that is kept between decisions saves building it each time.
    """
    queue = jobs if isinstance(jobs, Queue) else Queue(jobs)
    queue.wake(now)
    decided = _Round(queue, capacity, now, usage)
    try:
        decided.decide()
    finally:
        decided.restore()
    return decided.decision()


class _Verdict(Enum):
    STARTED = auto()
    NOT_NOW = auto()
    """This job does not start; the next of its line may."""
    NO_LINE = auto()
    """Nor does any job of its line."""
    NO_PROJECT = auto()
    """Nor does any job of its project."""


class _Round:
    """One decision while it is being made. It changes `capacity` as it goes, and puts everything back at the end."""

    def __init__(self, queue: Queue, capacity: Capacity, now: float, usage: Usage) -> None:
        self.queue = queue
        self.capacity = capacity
        self.now = now
        self.usage = usage
        self.reservations = Reservations(now)
        self.reserved: str | None = None
        self.starts: list[Start] = []
        self.preemptions: list[Preemption] = []
        self.unplaceable = [
            Unplaceable(job.id, "its deadline passed before there was room for it") for job in queue.expired(now)
        ]
        self.favoured = 0
        self.reserved_hosts = 0
        self.looked_at = 0
        self.full: set[str] = set()
        """Projects that may start nothing more."""

    def decision(self) -> Decision:
        return Decision(tuple(self.starts), tuple(self.preemptions), tuple(self.unplaceable), self.reserved)

    def restore(self) -> None:
        """Undo what was supposed of the capacity."""
        for start in self.starts:
            self.capacity.free(start.job)
        for preemption in self.preemptions:
            self.capacity.take(replace(self.capacity.free(preemption.job), stopping=False))

    def decide(self) -> None:
        self._tell_hopeless()
        for priority in self.queue.priorities():
            if not self._level(priority):
                return

    def _tell_hopeless(self) -> None:
        """Every line that no host could ever hold. Not while lines are considered: that ends early where nothing
        is free."""
        if not self.capacity.rooms:
            return
        hopeless: list[tuple[Order, Unplaceable]] = []
        for priority in self.queue.priorities():
            for by_need in self.queue.levels[priority].values():
                for resources, line in by_need.items():
                    if not self.capacity.possible(resources):
                        message = _impossible(resources, self.capacity)
                        hopeless += [
                            (order, Unplaceable(job.id, message)) for order, job in line if job.deadline >= self.now
                        ]
        self.unplaceable += [each for _, each in sorted(hopeless, key=lambda entry: entry[0])]

    def _level(self, priority: int) -> bool:
        """All jobs of one priority that hosts could hold; returns whether lower ones may still start."""
        lines = {}
        for project, by_need in self.queue.levels[priority].items():
            possible = [line for need, line in by_need.items() if self.capacity.possible(need)]
            if possible and project not in self.full:
                lines[project] = [(line[0][0], number, 0, line) for number, line in enumerate(possible)]
        for line in lines.values():
            heapq.heapify(line)
        projects = [(self._share(project), line[0][0], project) for project, line in lines.items()]
        heapq.heapify(projects)
        while projects:
            if self.reserved is not None and (self.looked_at >= DEPTH or self._nothing_free(priority)):
                return False
            *_, project = heapq.heappop(projects)
            if self._next(lines[project]):
                heapq.heappush(projects, (self._share(project), lines[project][0][0], project))
        return True

    def _nothing_free(self, priority: int) -> bool:
        return self.capacity.exhausted and not can_preempt(self.capacity, priority)

    def _next(self, lines: list[tuple[Order, int, int, Line]]) -> bool:
        """Consider a project's next job; returns whether more of its jobs are left at this priority."""
        _, number, place, line = heapq.heappop(lines)
        job = line[place][1]
        verdict = self._consider(job)
        if verdict is not _Verdict.STARTED:
            self.looked_at += 1
        if verdict is _Verdict.NO_PROJECT:
            self.full.add(job.project)
            return False
        if verdict is not _Verdict.NO_LINE and place + 1 < len(line):
            heapq.heappush(lines, (line[place + 1][0], number, place + 1, line))
        return bool(lines)

    def _share(self, project: str) -> float:
        """The largest share that the project holds of any resource, for its weight."""
        held = self.capacity.projects.get(project, Held())
        total = self.capacity.total
        shares = (
            amount / of
            for amount, of in ((held.gpus, total.gpus), (held.cpus, total.cpus), (held.memory, total.memory))
            if of
        )
        return max(shares, default=0.0) / self.usage.get(project, Share()).weight

    def _consider(self, job: WaitingJob) -> _Verdict:
        if job.deadline < self.now:
            return _Verdict.NOT_NOW
        share, held = self.usage.get(job.project, Share()), self.capacity.projects.get(job.project, Held())
        if share.max_running is not None and held.jobs >= share.max_running:
            return _Verdict.NO_PROJECT
        gpus = job.resources.total_gpus
        if gpus and share.max_gpus is not None and held.gpus + gpus > share.max_gpus:
            return _Verdict.NO_LINE
        placement = self.capacity.place(job.resources, lambda room: self.reservations.pick(room, job))
        if placement is not None:
            self._start(job, placement)
            return _Verdict.STARTED
        if self.reserved is None:
            self.reserved = job.id
        if self._make_room(job):
            return _Verdict.NOT_NOW
        # the reservations of others are in its way: a shorter job of its line may pass
        return (
            _Verdict.NOT_NOW if self.reservations.by_host and self.capacity.place(job.resources) else _Verdict.NO_LINE
        )

    def _start(self, job: WaitingJob, placement: Placement) -> None:
        self.starts.append(Start(job.id, placement))
        self.reservations.started(job, placement)
        self.capacity.take(
            RunningJob(job.id, placement, job.project, job.priority, job.resources, self.now, job.expected_seconds)
        )

    def _make_room(self, job: WaitingJob) -> bool:
        """Have others stop for this job, or keep hosts for it. Returns whether places are coming free for it at
        once."""
        if self.favoured < PREEMPTIONS and can_preempt(self.capacity, job.priority):
            to_stop = make_room(self.capacity, job, self.reservations)
            if to_stop is not None:
                self.favoured += 1
                for running in to_stop:
                    self.preemptions.append(Preemption(running.id, job.id))
                    self.capacity.take(replace(self.capacity.free(running.id), stopping=True))
                return True
        if self.reserved_hosts < RESERVATIONS and self.reservations.reserve(self.capacity, job):
            self.reserved_hosts += 1
        return False


def _impossible(resources: Resources, capacity: Capacity) -> str:
    """A sentence that says what was asked and what the hosts have."""
    needs = [f"{resources.gpus} GPU{'s' if resources.gpus > 1 else ''}"] if resources.gpus else []
    if resources.gpus and resources.gpu_kind:
        needs[-1] += f" of kind '{resources.gpu_kind}'"
    if resources.gpus and resources.gpu_memory:
        needs[-1] += f" with at least {_size(resources.gpu_memory)}"
    needs += [f"{resources.cpus} core{'s' if resources.cpus != 1 else ''}"]
    needs += [f"{_size(resources.memory)} of memory"] if resources.memory else []
    each = f" on each of {resources.hosts} hosts" if resources.hosts > 1 else ""
    hosts = [room.host for room in capacity.rooms.values()]
    largest = max(hosts, key=lambda host: (len(host.slots), host.cpus), default=None)
    if largest is None:
        return f"needs {', '.join(needs)}{each}, and there are no hosts"
    gpus = f"{len(largest.slots)} GPUs" + (
        f" ({largest.slots[0].kind}, {_size(largest.slots[0].memory)})" if largest.slots else ""
    )
    have = f"the largest of {len(hosts)} hosts has" if len(hosts) > 1 else "the only host has"
    return f"needs {', '.join(needs)}{each}; {have} {gpus}, {largest.cpus} cores and {_size(largest.memory)} of memory"


def _size(number: float) -> str:
    return f"{number / 2**30:.4g} GiB" if math.isfinite(number) else "any amount"
