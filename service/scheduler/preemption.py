"""Preemption: which jobs of lower priority must stop so that a job of higher priority can start."""

from __future__ import annotations

from service.scheduler.backfill import Kept, Reservations, released, without
from service.scheduler.capacity import Capacity, Room
from service.scheduler.queue import RunningJob, WaitingJob


def make_room(capacity: Capacity, job: WaitingJob, reservations: Reservations) -> list[RunningJob] | None:
    """Keep room for the job on hosts where others stop, and name those that must be asked to, none of them needlessly.

    [] when those that are stopping already suffice; None, and nothing kept, when nothing helps. Only strictly lower
    priorities are taken: the lowest first, and within one the youngest, which lose least.
    """
    search = _Search(capacity, job, reservations)
    found: list[RunningJob] = []
    if not search.found:
        for running in stopping(capacity):
            search.release(running)
    if not search.found:
        for running in _weaker(capacity, job.priority):
            if not search.release(running):
                continue
            found.append(running)
            if search.found:
                break
        else:
            return None
        found = search.without_needless(found)
    gone = {running.id for running in [*stopping(capacity), *found]}
    for name in search.chosen:
        kept = reservations.kept.get(name)
        everyone = frozenset(gone | (kept.gone if kept else frozenset()))
        reservations.keep(capacity, job, [search.futures[name]], reservations.now, everyone)
    return found


def can_preempt(capacity: Capacity, priority: int) -> bool:
    """Whether anything of a lower priority runs, or anything is stopping."""
    return _any_stopping(capacity) or any(level < priority and jobs for level, jobs in capacity.by_priority.items())


def stopping(capacity: Capacity) -> list[RunningJob]:
    """The jobs that were asked to stop."""
    found: list[RunningJob] = []
    for _, _, identifier in capacity.by_end:  # these end first
        if not capacity.running[identifier].stopping:
            break
        found.append(capacity.running[identifier])
    return found


def _any_stopping(capacity: Capacity) -> bool:
    return bool(capacity.by_end) and capacity.running[capacity.by_end[0][2]].stopping


def _weaker(capacity: Capacity, priority: int) -> list[RunningJob]:
    """All jobs of lower priority that were not asked to stop, the cheapest to stop first."""
    lower = (identifier for level, found in capacity.by_priority.items() if level < priority for identifier in found)
    return sorted(
        (capacity.running[identifier] for identifier in lower), key=lambda each: (each.priority, -each.began, each.id)
    )


class _Search:
    """Hosts as they would be without some jobs, until enough of them have room."""

    def __init__(self, capacity: Capacity, job: WaitingJob, reservations: Reservations) -> None:
        self.capacity = capacity
        self.job = job
        self.kept: dict[str, Kept] = reservations.kept
        self.futures: dict[str, Room] = {}
        self.ready: list[str] = []
        for room in capacity.candidates(job.resources):
            if room.host.name not in self.kept:
                self._consider(room)
        for kept in self.kept.values():
            if kept.by_stopping:
                self._consider(kept.room)

    @property
    def found(self) -> bool:
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
        kept = self.kept.get(name)
        if kept is not None and (not kept.by_stopping or running.id in kept.gone):
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

    def without_needless(self, found: list[RunningJob]) -> list[RunningJob]:
        """The jobs that must really stop: each runs on if the chosen hosts have room without it, the most precious
        first."""
        needed: list[RunningJob] = []
        for running in reversed(found):
            before = dict(self.futures)
            for part in running.placement:
                room = self._future(part.host, running)
                if room is not None:
                    self.futures[part.host] = without(room, running.resources, part.gpus)
            if any(self.futures[name].chosen(self.job.resources) is None for name in self.chosen):
                self.futures = before
                needed.append(running)
        return needed[::-1]
