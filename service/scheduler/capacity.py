"""What hosts have free, kept so that a place for a job is found without looking at every host.

Equal hosts are of one make; within it they lie in buckets by how many GPUs are free. A job takes the fullest
host that still has room (best fit), so that whole hosts stay free for the large ones.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from service.jobs.job import GpuSlot, Host, HostShare, Placement, Resources
from service.scheduler.queue import RunningJob


class Make:
    """What equal hosts have in common, and what was found out about it."""

    def __init__(self, host: Host) -> None:
        self.cpus = host.cpus
        self.memory = host.memory
        self.slots = host.slots
        self.buckets: dict[int, list[int]] = {}
        """Bucket -> the numbers of the hosts in it, ascending."""
        self._suiting: dict[tuple[int, str | None], frozenset[int]] = {}

    def suiting(self, resources: Resources) -> frozenset[int]:
        """Indices of the GPUs that are of the asked kind and large enough."""
        needs = (resources.gpu_memory, resources.gpu_kind)
        if needs not in self._suiting:
            self._suiting[needs] = frozenset(slot.index for slot in self.slots if resources.suits(slot))
        return self._suiting[needs]

    def could_hold(self, resources: Resources) -> bool:
        """Whether such a host, with nothing on it, has room for one part of the job."""
        enough = self.cpus >= resources.cpus and self.memory >= resources.memory
        return enough and (not resources.gpus or len(self.suiting(resources)) >= resources.gpus)


@dataclass(slots=True)
class Room:
    """A host and what of it is free."""

    host: Host
    make: Make
    number: int
    """Its place among all hosts; ties between equals are settled by it."""
    cpus: int
    memory: int
    gpus: list[int]
    """Indices of the free GPUs, ascending."""

    @property
    def up(self) -> bool:
        return self.host.state == "up"

    @property
    def bucket(self) -> int:
        """Free GPUs; below 0 (as their complement) when no processor core is left."""
        return len(self.gpus) if self.cpus > 0 else ~len(self.gpus)

    def having(self, cpus: int, memory: int, gpus: list[int]) -> Room:
        """The same host with something else free."""
        return Room(self.host, self.make, self.number, cpus, memory, gpus)

    def chosen(self, resources: Resources) -> tuple[int, ...] | None:
        """The GPUs that a job would get here now; None when it does not fit."""
        if self.cpus < resources.cpus or self.memory < resources.memory or len(self.gpus) < resources.gpus:
            return None
        if not resources.gpus:
            return ()
        if resources.gpu_memory or resources.gpu_kind:
            suiting = self.make.suiting(resources)
            gpus = tuple([index for index in self.gpus if index in suiting][: resources.gpus])
            return gpus if len(gpus) == resources.gpus else None
        return tuple(self.gpus[: resources.gpus])

    def with_again(self, gpus: tuple[int, ...]) -> list[int]:
        """Its free GPUs when these, as far as it still has them, are free too."""
        own = self.make.suiting(ANY)
        return sorted({*self.gpus, *(index for index in gpus if index in own)}) if gpus else self.gpus


ANY = Resources()
Shape = tuple[int, int, tuple[GpuSlot, ...]]
Pick = Callable[[Room], tuple[int, ...] | None]
"""The GPUs that a job would get on a host; None when it may not have it."""


class Capacity:
    """The hosts, what runs on them, and what is free."""

    def __init__(self, hosts: Iterable[Host], running: Iterable[RunningJob] = ()) -> None:
        self.rooms: dict[str, Room] = {}
        self.running: dict[str, RunningJob] = {}
        self.projects: dict[str, Held] = {}
        """What each project holds."""
        self.total = Held()
        """What all hosts that are up have; `jobs` counts the hosts."""
        self.by_end: list[tuple[float, float, str]] = []
        """Running jobs by when they end: (end, began, id)."""
        self.by_priority: dict[int, set[str]] = {}
        """Priority -> running jobs that were not asked to stop."""
        self._numbered: list[Room] = []
        self._possible: dict[Resources, bool] = {}
        self._makes: dict[Shape, Make] = {}
        self._order: list[Make] = []
        """Those with few GPUs first, so that what needs none leaves the others alone."""
        for host in hosts:
            self._add(host)
        for job in running:
            self.take(job)

    def _add(self, host: Host) -> None:
        make = self._makes.setdefault(_shape(host), Make(host))
        room = Room(host, make, len(self._numbered), host.cpus, host.memory, sorted(slot.index for slot in host.slots))
        self.rooms[host.name] = room
        self._numbered.append(room)
        if not room.up:
            return
        self.total.add(Resources(gpus=len(host.slots), cpus=host.cpus, memory=host.memory), 1)
        if make not in self._order:
            insort(self._order, make, key=lambda each: (len(each.slots), each.cpus, each.memory))
        self._file(room)

    def _file(self, room: Room) -> None:
        insort(room.make.buckets.setdefault(room.bucket, []), room.number)

    def _unfile(self, room: Room) -> None:
        numbers = room.make.buckets[room.bucket]
        del numbers[bisect_left(numbers, room.number)]

    def take(self, job: RunningJob) -> None:
        """A job holds its place from now on. Its host may be gone; then only the job is known."""
        self.running[job.id] = job
        insort(self.by_end, (job.ends, job.began, job.id))
        if not job.stopping:
            self.by_priority.setdefault(job.priority, set()).add(job.id)
        self.projects.setdefault(job.project, Held()).add(job.resources, 1)
        self._change(job, -1)

    def free(self, identifier: str) -> RunningJob:
        """A job holds its place no longer."""
        job = self.running.pop(identifier)
        del self.by_end[bisect_left(self.by_end, (job.ends, job.began, job.id))]
        if not job.stopping:
            self.by_priority[job.priority].discard(identifier)
        held = self.projects[job.project]
        held.add(job.resources, -1)
        if not held.jobs:
            del self.projects[job.project]
        self._change(job, 1)
        return job

    def _change(self, job: RunningJob, sign: int) -> None:
        for part in job.placement:
            room = self.rooms.get(part.host)
            if room is None:
                continue
            if room.up:
                self._unfile(room)
            room.cpus += sign * job.resources.cpus
            room.memory += sign * job.resources.memory
            if part.gpus:
                room.gpus = (
                    room.with_again(part.gpus) if sign > 0 else [index for index in room.gpus if index not in part.gpus]
                )
            if room.up:
                self._file(room)

    def candidates(self, resources: Resources) -> Iterator[Room]:
        """The rooms that fit one part of the job now, the fullest first, make by make."""
        for make in self._order:
            yield from self._of_make(make, resources)

    def _of_make(self, make: Make, resources: Resources) -> Iterator[Room]:
        if not make.could_hold(resources):
            return
        for free in range(resources.gpus, len(make.slots) + 1):
            for bucket in (free,) if resources.cpus else (~free, free):
                for number in make.buckets.get(bucket, ()):
                    room = self._numbered[number]
                    if room.chosen(resources) is not None:
                        yield room

    def place(self, resources: Resources, pick: Pick | None = None) -> Placement | None:
        """A place for the whole job now, or None. A job over several hosts gets equal ones where that is possible."""
        if resources.hosts > 1:
            for make in self._order:
                if placement := _first(self._of_make(make, resources), resources, pick):
                    return placement
        return _first(self.candidates(resources), resources, pick)

    def possible(self, resources: Resources) -> bool:
        """Whether the job would fit if nothing ran, on all hosts that are known, up or not."""
        if resources not in self._possible:
            fitting = (room for room in self._numbered if room.make.could_hold(resources))
            self._possible[resources] = sum(1 for _ in islice(fitting, resources.hosts)) == resources.hosts
        return self._possible[resources]

    @property
    def exhausted(self) -> bool:
        """Whether no host has a processor core or a GPU left."""
        return not any(numbers for make in self._order for bucket, numbers in make.buckets.items() if bucket != ~0)


@dataclass
class Held:
    """An amount of everything."""

    gpus: int = 0
    cpus: int = 0
    memory: int = 0
    jobs: int = 0

    def add(self, resources: Resources, sign: int) -> None:
        """More, or less, by one job."""
        self.gpus += sign * resources.total_gpus
        self.cpus += sign * resources.cpus * resources.hosts
        self.memory += sign * resources.memory * resources.hosts
        self.jobs += sign


def _shape(host: Host) -> Shape:
    return (host.cpus, host.memory, tuple(GpuSlot(slot.index, slot.kind, slot.memory) for slot in host.slots))


def _first(rooms: Iterable[Room], resources: Resources, pick: Pick | None) -> Placement | None:
    parts: list[HostShare] = []
    for room in rooms:
        gpus = room.chosen(resources) if pick is None else pick(room)
        if gpus is None:
            continue
        parts.append(HostShare(room.host.name, gpus))
        if len(parts) == resources.hosts:
            return tuple(parts)
    return None
