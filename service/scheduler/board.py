"""The scheduler's picture of the store, brought up to date by what changed."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from service.jobs.resources import Host
from service.jobs.states import ACTIVE, STOPPING, TERMINAL, State
from service.scheduler.capacity import Capacity
from service.scheduler.queue import Queue
from service.scheduler.values import Running, Share, Unplaceable, Usage, Waiting
from service.store.store import Store
from service.store.waiting import Standing

OVERLAP = 2.0
"""Seconds before the last look whose changes are read again: a change is dated a moment before it can be seen."""
WHOLE_SECONDS = 300.0
"""How often everything is read anew, should a change have been missed all the same (a server whose clock is behind)."""


class Board:
    """Queue and capacity as the store has them. One thread's own."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.queue = Queue()
        self.capacity = Capacity(())
        self.usage: Usage = {}
        self.orphans: list[Unplaceable] = []
        """Jobs that depend on one that will not succeed."""
        self._hosts: list[Host] = []
        self._looked = 0.0
        self._whole = -math.inf

    def forget(self) -> None:
        """Read everything anew the next time."""
        self._whole = -math.inf

    def refresh(self) -> None:
        """Bring everything up to date."""
        self._read_hosts()
        looked, self._looked = self._looked, time.time()
        if time.monotonic() - self._whole > WHOLE_SECONDS:
            self._whole = time.monotonic()
            standing = self.store.standing()
            self.queue = Queue()
            self.capacity = Capacity(self._hosts)
        else:
            standing = self.store.changed_since(looked - OVERLAP)
        self.usage = {
            project.name: Share(project.weight, project.max_gpus, project.max_running) for project in self.store.projects()
        }
        awaited = {needed for job in standing if job.state is State.QUEUED for needed in job.depends_on}
        states = self.store.states_of(awaited | self.queue.awaited()) if awaited or self.queue.awaited() else {}
        for job in standing:
            self._place(job, states)
        self._settle_dependents(states)

    def _read_hosts(self) -> None:
        hosts = self.store.hosts()
        if [_lasting(host) for host in hosts] != [_lasting(host) for host in self._hosts]:
            self._hosts = hosts
            self.capacity = Capacity(hosts, self.capacity.running.values())

    def _place(self, job: Standing, states: dict[str, State]) -> None:
        if job.state is State.QUEUED:
            self._release(job.id)
            self.queue.add(_waiting(job, states))
            return
        self.queue.remove(job.id)
        if job.state in ACTIVE and job.placement:
            running = _running(job)
            if self.capacity.running.get(job.id) != running:
                self._release(job.id)
                self.capacity.take(running)
        elif job.state not in ACTIVE:
            self._release(job.id)

    def _release(self, identifier: str) -> None:
        if identifier in self.capacity.running:
            self.capacity.free(identifier)

    def _settle_dependents(self, states: dict[str, State]) -> None:
        """Line up jobs whose last dependency has succeeded; name those that wait in vain."""
        self.orphans = []
        for needed in sorted(self.queue.awaited()):
            state = states.get(needed)
            if state is not None and state not in TERMINAL:
                continue
            for job in self.queue.dependents(needed):
                if state is State.SUCCEEDED:
                    self.queue.add(_freed(job, needed))
                else:
                    self.orphans.append(Unplaceable(job.id, f"depends on job '{needed}', which has {ENDED[state]}"))


ENDED = {State.FAILED: "failed", State.CANCELLED: "been cancelled", None: "been deleted"}


def _lasting(host: Host) -> tuple[object, ...]:
    """What of a host matters here: not when it was last seen."""
    return (host.name, host.executor, host.cpus, host.memory, host.slots, host.state, host.info.get("holder"))


def _waiting(job: Standing, states: dict[str, State]) -> Waiting:
    return Waiting(
        id=job.id,
        project=job.project,
        priority=job.priority,
        resources=job.resources,
        submitted=job.created,
        not_before=job.not_before,
        deadline=math.inf if job.deadline is None else job.deadline,
        expected_seconds=math.inf if job.expected_seconds is None else job.expected_seconds,
        waits_for=frozenset(needed for needed in job.depends_on if states.get(needed) is not State.SUCCEEDED),
    )


def _freed(job: Waiting, needed: str) -> Waiting:
    return replace(job, waits_for=job.waits_for - {needed})


def _running(job: Standing) -> Running:
    return Running(
        id=job.id,
        placement=job.placement,
        project=job.project,
        priority=job.priority,
        resources=job.resources,
        began=job.began,
        expected_seconds=math.inf if job.expected_seconds is None else job.expected_seconds,
        stopping=job.state in STOPPING,
    )
