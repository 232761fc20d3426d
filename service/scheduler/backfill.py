"""Back-filling: small jobs start early as long as they do not delay the large job that waits at the head.

Lifka 1995, "The ANL/IBM SP Scheduling System" (EASY). When the head does not fit, the hosts that will have room for it
first are reserved from that moment on: others may use them until then, or beside what it needs.
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
        self.kept: dict[str, Kept] = {}
        self.jobs: list[str] = []

    def pick(self, room: Room, job: WaitingJob) -> tuple[int, ...] | None:
        """The GPUs that the job may take on this host now; None when it may not start there."""
        kept = self.kept.get(room.host.name)
        if kept is None or self._over_by_then(job, kept):
            return room.chosen(job.resources)
        cpus, memory = min(room.cpus, kept.room.cpus), min(room.memory, kept.room.memory)
        gpus = [index for index in room.gpus if index in kept.room.gpus]
        return room.having(cpus, memory, gpus).chosen(job.resources)

    def started(self, job: WaitingJob, placement: Placement) -> None:
        """A job started beside reservations: what it holds beyond their beginning is theirs no longer."""
        for part in placement:
            kept = self.kept.get(part.host)
            if kept is not None and not self._over_by_then(job, kept):
                kept.room = without(kept.room, job.resources, part.gpus)

    def _over_by_then(self, job: WaitingJob, kept: Kept) -> bool:
        return self.now + job.expected_seconds <= kept.begins < math.inf

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
            self.kept[future.host.name] = Kept(begins, without(future, job.resources, taken), gone)
        self.jobs.append(job.id)

    def reserve(self, capacity: Capacity, job: WaitingJob) -> bool:
        """Keep for this job the hosts that will have room for it first. Returns whether there are enough of them."""
        futures: dict[str, Room] = {}
        ready = [room.host.name for room in capacity.candidates(job.resources) if room.host.name not in self.kept]
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
        return None if room is None or not room.up or name in self.kept or not room.make.could_hold(resources) else room


def released(room: Room, running: RunningJob, part: HostShare) -> Room:
    """The host when one of its jobs has ended."""
    resources = running.resources
    return room.having(room.cpus + resources.cpus, room.memory + resources.memory, room.with_again(part.gpus))


def without(room: Room, resources: Resources, gpus: tuple[int, ...]) -> Room:
    """The host with one part of a job more."""
    left = [index for index in room.gpus if index not in gpus]
    return room.having(room.cpus - resources.cpus, room.memory - resources.memory, left)
