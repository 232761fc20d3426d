"""What a decision is made from, as values, and the jobs that wait, kept in order.

Jobs of one project and priority that need the same are one line: when its first does not fit, none does. A decision
therefore looks at heads of lines and not at every job.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from service.jobs.job import Placement, Resources


@dataclass(frozen=True)
class WaitingJob:
    """A job in the queue."""

    id: str
    project: str = ""
    priority: int = 0
    resources: Resources = field(default_factory=Resources)
    submitted: float = 0.0
    not_before: float = 0.0
    """End of a back-off."""
    deadline: float = math.inf
    """It must have started by then."""
    expected_seconds: float = math.inf
    """It runs at most that long, as far as is known."""
    waits_for: frozenset[str] = frozenset()
    """Jobs that have not succeeded yet and must have."""

    @property
    def order(self) -> tuple[float, float, str]:
        """Place among the jobs of its project and priority: the nearest deadline first, then the oldest."""
        return (self.deadline, self.submitted, self.id)


@dataclass(frozen=True)
class RunningJob:
    """A job that holds resources."""

    id: str
    placement: Placement
    project: str = ""
    priority: int = 0
    resources: Resources = field(default_factory=Resources)
    began: float = 0.0
    expected_seconds: float = math.inf
    stopping: bool = False
    """It was asked to stop: its resources come free soon."""

    @property
    def ends(self) -> float:
        """When its resources come free, as far as is known."""
        return -math.inf if self.stopping else self.began + self.expected_seconds


@dataclass(frozen=True)
class Share:
    """What a project may have."""

    weight: float = 1.0
    max_gpus: int | None = None
    max_running: int | None = None


Usage = Mapping[str, Share]
"""Project -> its share; a project that is not there has weight 1 and no limits."""


@dataclass(frozen=True)
class Start:
    """Give a job this place."""

    job: str
    placement: Placement


@dataclass(frozen=True)
class Preemption:
    """Stop a job, so that another one of higher priority can start when it has ended."""

    job: str
    favours: str


@dataclass(frozen=True)
class Unplaceable:
    """A job that will never start."""

    job: str
    message: str


@dataclass(frozen=True)
class Decision:
    """What to do now, in this order of importance: starts in the order in which they were chosen."""

    starts: tuple[Start, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    unplaceable: tuple[Unplaceable, ...] = ()
    reserved: str | None = None
    """The first job that cannot start yet; nothing that starts now delays it."""


Order = tuple[float, float, str]
Line = list[tuple[Order, WaitingJob]]


class Queue:
    """Jobs by priority, project and what they need. Jobs in a back-off, or that wait for another job, are set aside."""

    def __init__(self, jobs: Iterable[WaitingJob] = ()) -> None:
        self.jobs: dict[str, WaitingJob] = {}
        self.levels: dict[int, dict[str, dict[Resources, Line]]] = {}
        self._priorities: list[int] = []
        """Negated, ascending: the highest first."""
        self._asleep: list[tuple[float, str]] = []
        """(end of the back-off, id), earliest first; entries may be outdated."""
        self._deadlines: list[tuple[float, str]] = []
        self._dependents: dict[str, set[str]] = {}
        for job in jobs:
            self.add(job)

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, job: WaitingJob) -> None:
        """Take a job, or a changed one in its place."""
        if self.jobs.get(job.id) == job:
            return
        self.remove(job.id)
        self.jobs[job.id] = job
        if job.deadline < math.inf:
            heapq.heappush(self._deadlines, (job.deadline, job.id))
        if job.waits_for:
            for other in job.waits_for:
                self._dependents.setdefault(other, set()).add(job.id)
        elif job.not_before > 0:
            heapq.heappush(self._asleep, (job.not_before, job.id))
        else:
            self._line_up(job)

    def _line_up(self, job: WaitingJob) -> None:
        if job.priority not in self.levels:
            self.levels[job.priority] = {}
            insort(self._priorities, -job.priority)
        line = self.levels[job.priority].setdefault(job.project, {}).setdefault(job.resources, [])
        insort(line, (job.order, job), key=_order)

    def remove(self, identifier: str) -> WaitingJob | None:
        """Forget a job; None when it is not here."""
        job = self.jobs.pop(identifier, None)
        if job is None:
            return None
        for other in job.waits_for:
            self._dependents.get(other, set()).discard(identifier)
        self._leave(job)
        return job

    def _leave(self, job: WaitingJob) -> None:
        projects = self.levels.get(job.priority, {})
        lines = projects.get(job.project, {})
        line = lines.get(job.resources, [])
        place = bisect_left(line, job.order, key=_order)
        if place == len(line) or line[place][1].id != job.id:
            return
        del line[place]
        if not line:
            del lines[job.resources]
        if not lines:
            del projects[job.project]
        if not projects:
            del self.levels[job.priority]
            self._priorities.remove(-job.priority)

    def wake(self, now: float) -> None:
        """Line up the jobs whose back-off is over."""
        while self._asleep and self._asleep[0][0] <= now:
            _, identifier = heapq.heappop(self._asleep)
            job = self.jobs.get(identifier)
            if job is not None and not job.waits_for and 0 < job.not_before <= now:
                self._leave(job)  # it may have two outdated entries
                self._line_up(job)

    def next_wake(self) -> float:
        """When the next back-off or deadline ends; infinity when there is none."""
        return min(
            self._asleep[0][0] if self._asleep else math.inf, self._deadlines[0][0] if self._deadlines else math.inf
        )

    def expired(self, now: float) -> list[WaitingJob]:
        """The jobs whose deadline has passed, the earliest first; they stay until they are removed."""
        jobs: dict[str, WaitingJob] = {}
        while self._deadlines and self._deadlines[0][0] < now:
            deadline, identifier = heapq.heappop(self._deadlines)
            job = self.jobs.get(identifier)
            if job is not None and job.deadline == deadline:
                jobs[identifier] = job
        for job in jobs.values():
            heapq.heappush(self._deadlines, (job.deadline, job.id))
        return list(jobs.values())

    def dependents(self, identifier: str) -> list[WaitingJob]:
        """The jobs that wait for this one."""
        return [self.jobs[name] for name in sorted(self._dependents.get(identifier, ()))]

    def awaited(self) -> set[str]:
        """The jobs that others wait for."""
        return {identifier for identifier, waiting in self._dependents.items() if waiting}

    def priorities(self) -> Iterator[int]:
        """Every priority at which a job could start, the highest first."""
        return (-negated for negated in self._priorities)


def _order(entry: tuple[Order, WaitingJob]) -> Order:
    return entry[0]
