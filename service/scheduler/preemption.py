"""What is done for a large job that cannot start: back-filling around it, and preemption of lower priorities.

Back-filling: small jobs start early as long as they do not delay the large job that waits at the head (Lifka 1995,
"The ANL/IBM SP Scheduling System", EASY). When the head does not fit, the hosts that will have room for it first are
reserved from that moment on: others may use them until then, or beside what it needs.

Preemption: which jobs of lower priority must stop so that a job of higher priority can start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from service.jobs.job import HostShare, Placement, Resources
from service.scheduler.capacity import Capacity, Room
from service.scheduler.queue import RunningJob, WaitingJob


@dataclass
class Kept:
    """A host on which something is kept for a job that waits."""

    begins: float
    """When that job can start, as far as is known."""
    room: Room
    """What is free then, beside that job."""
    gone: frozenset[str] = frozenset()
    """Jobs that hold resources now, and will have stopped because they were asked to."""

    @property
    def by_stopping(self) -> bool:
        """Whether it is kept until jobs have stopped, not until they end by themselves."""
        return bool(self.gone)


class Reservations:
    """Hosts on which room is kept for jobs at the heads of lines."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.by_host: dict[str, Kept] = {}
        self.jobs: list[str] = []

    def pick(self, room: Room, job: WaitingJob) -> tuple[int, ...] | None:
        """The GPUs that the job may take on this host now; None when it may not start there."""
        reservation = self.by_host.get(room.host.name)
        if reservation is None or self._over_by_then(job, reservation):
            return room.chosen(job.resources)
        cpus, memory = min(room.cpus, reservation.room.cpus), min(room.memory, reservation.room.memory)
        gpus = [index for index in room.gpus if index in reservation.room.gpus]
        return room.having(cpus, memory, gpus).chosen(job.resources)

    def started(self, job: WaitingJob, placement: Placement) -> None:
        """A job started beside reservations: what it holds beyond their beginning is theirs no longer."""
        for part in placement:
            reservation = self.by_host.get(part.host)
            if reservation is not None and not self._over_by_then(job, reservation):
                reservation.room = without(reservation.room, job.resources, part.gpus)

    def _over_by_then(self, job: WaitingJob, reservation: Kept) -> bool:
        return self.now + job.expected_seconds <= reservation.begins < math.inf

    def keep(
        self,
        capacity: Capacity,
        job: WaitingJob,
        futures: Iterable[Room],
        begins: float,
        gone: frozenset[str] = frozenset(),
    ) -> None:
        """Keep one part of the job on each of these hosts, as they will be then. GPUs that are not free yet are
        kept first."""
        for future in futures:
            free_now = set(capacity.rooms[future.host.name].gpus)
            last_first = future.having(
                future.cpus, future.memory, sorted(future.gpus, key=lambda index: (index in free_now, index))
            )
            taken = last_first.chosen(job.resources) or ()
            self.by_host[future.host.name] = Kept(begins, without(future, job.resources, taken), gone)
        self.jobs.append(job.id)

    def reserve(self, capacity: Capacity, job: WaitingJob) -> bool:
        """Keep for this job the hosts that will have room for it first. Returns whether there are enough of them."""
        futures: dict[str, Room] = {}
        ready = [room.host.name for room in capacity.candidates(job.resources) if room.host.name not in self.by_host]
        begins = self.now
        for end, _, identifier in capacity.by_end:
            if len(ready) >= job.resources.hosts:
                break
            begins = max(self.now, end)
            running = capacity.running[identifier]
            for part in running.placement:
                room = futures.get(part.host) or self._future(capacity, part.host, job.resources)
                if room is None:
                    continue
                futures[part.host] = room = released(room, running, part)
                if part.host not in ready and room.chosen(job.resources) is not None:
                    ready.append(part.host)
        chosen = ready[: job.resources.hosts]
        if len(chosen) < job.resources.hosts:
            return False
        self.keep(capacity, job, [futures.get(name) or capacity.rooms[name] for name in chosen], begins)
        return True

    def _future(self, capacity: Capacity, name: str, resources: Resources) -> Room | None:
        room = capacity.rooms.get(name)
        return (
            None if room is None or not room.up or name in self.by_host or not room.make.could_hold(resources) else room
        )


def released(room: Room, running: RunningJob, part: HostShare) -> Room:
    """The host when one of its jobs has ended."""
    resources = running.resources
    return room.having(room.cpus + resources.cpus, room.memory + resources.memory, room.with_again(part.gpus))


def without(room: Room, resources: Resources, gpus: tuple[int, ...]) -> Room:
    """The host with one part of a job more."""
    left = [index for index in room.gpus if index not in gpus]
    return room.having(room.cpus - resources.cpus, room.memory - resources.memory, left)


def make_room(capacity: Capacity, job: WaitingJob, reservations: Reservations) -> list[RunningJob] | None:
    """Keep room for the job on hosts where others stop, and name those that must be asked to, none of them needlessly.

    [] when those that are stopping already suffice; None, and nothing kept, when nothing helps. Only strictly lower
    priorities are taken: the lowest first, and within one the youngest, which lose least.
    """
    search = _Search(capacity, job, reservations)
    to_stop: list[RunningJob] = []
    if not search.enough:
        for running in stopping(capacity):
            search.release(running)
    if not search.enough:
        for running in _weaker(capacity, job.priority):
            if not search.release(running):
                continue
            to_stop.append(running)
            if search.enough:
                break
        else:
            return None
        to_stop = search.without_needless(to_stop)
    gone = {running.id for running in [*stopping(capacity), *to_stop]}
    for name in search.chosen:
        reservation = reservations.by_host.get(name)
        everyone = frozenset(gone | (reservation.gone if reservation else frozenset()))
        reservations.keep(capacity, job, [search.futures[name]], reservations.now, everyone)
    return to_stop


def can_preempt(capacity: Capacity, priority: int) -> bool:
    """Whether anything of a lower priority runs, or anything is stopping."""
    return _any_stopping(capacity) or any(level < priority and jobs for level, jobs in capacity.by_priority.items())


def stopping(capacity: Capacity) -> list[RunningJob]:
    """The jobs that were asked to stop."""
    jobs: list[RunningJob] = []
    for _, _, identifier in capacity.by_end:  # these end first
        if not capacity.running[identifier].stopping:
            break
        jobs.append(capacity.running[identifier])
    return jobs


def _any_stopping(capacity: Capacity) -> bool:
    return bool(capacity.by_end) and capacity.running[capacity.by_end[0][2]].stopping


def _weaker(capacity: Capacity, priority: int) -> list[RunningJob]:
    """All jobs of lower priority that were not asked to stop, the cheapest to stop first."""
    lower = (
        identifier
        for level, identifiers in capacity.by_priority.items()
        if level < priority
        for identifier in identifiers
    )
    return sorted(
        (capacity.running[identifier] for identifier in lower), key=lambda each: (each.priority, -each.began, each.id)
    )


class _Search:
    """Hosts as they would be without some jobs, until enough of them have room."""

    def __init__(self, capacity: Capacity, job: WaitingJob, reservations: Reservations) -> None:
        self.capacity = capacity
        self.job = job
        self.reserved: dict[str, Kept] = reservations.by_host
        self.futures: dict[str, Room] = {}
        self.ready: list[str] = []
        for room in capacity.candidates(job.resources):
            if room.host.name not in self.reserved:
                self._consider(room)
        for reservation in self.reserved.values():
            if reservation.by_stopping:
                self._consider(reservation.room)

    @property
    def enough(self) -> bool:
        return len(self.ready) >= self.job.resources.hosts

    @property
    def chosen(self) -> list[str]:
        """The hosts that the job would get."""
        return self.ready[: self.job.resources.hosts]

    def _consider(self, room: Room) -> None:
        name = room.host.name
        self.futures[name] = room
        if name not in self.ready and room.chosen(self.job.resources) is not None:
            self.ready.append(name)

    def _future(self, name: str, running: RunningJob) -> Room | None:
        """The host as supposed so far; None when this job's end frees nothing there that the waiting one may have."""
        reservation = self.reserved.get(name)
        if reservation is not None and (not reservation.by_stopping or running.id in reservation.gone):
            return None
        room = self.futures.get(name) or self.capacity.rooms.get(name)
        return room if room is not None and room.up else None

    def release(self, running: RunningJob) -> bool:
        """Suppose that this job has ended; returns whether that changes anything."""
        changed = False
        for part in running.placement:
            room = self._future(part.host, running)
            if room is not None:
                changed = True
                self._consider(released(room, running, part))
        return changed

    def without_needless(self, jobs: list[RunningJob]) -> list[RunningJob]:
        """The jobs that must really stop: each runs on if the chosen hosts have room without it, the most precious
        first."""
        needed: list[RunningJob] = []
        for running in reversed(jobs):
            before = dict(self.futures)
            for part in running.placement:
                room = self._future(part.host, running)
                if room is not None:
                    self.futures[part.host] = without(room, running.resources, part.gpus)
            if any(self.futures[name].chosen(self.job.resources) is None for name in self.chosen):
                self.futures = before
                needed.append(running)
        return needed[::-1]
