"""The scheduler: wakes when something changed, decides from its picture of the store, and writes the decision there.

Several servers may run on one database; the one that holds the `scheduler` lease decides, and every start carries the
lease's fencing token, so that one that was replaced without noticing starts nothing. Starting and stopping processes
is not done here: `service.attempts` acts on what is written.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import replace

from pipelines.core.errors import FineryError
from service.jobs.job import Host, Lease
from service.jobs.states import ACTIVE, STOPPING, TERMINAL, IllegalTransition, Move, Reason, State
from service.scheduler.capacity import Capacity
from service.scheduler.choose import choose
from service.scheduler.queue import (
    Decision,
    Preemption,
    Queue,
    RunningJob,
    Share,
    Start,
    Unplaceable,
    Usage,
    WaitingJob,
)
from service.settings import Settings
from service.store.changes import QUEUE
from service.store.errors import Conflict, NotFound, Unavailable
from service.store.jobs import Standing
from service.store.store import Store

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
            project.name: Share(project.weight, project.max_gpus, project.max_running)
            for project in self.store.projects()
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


def _waiting(job: Standing, states: dict[str, State]) -> WaitingJob:
    return WaitingJob(
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


def _freed(job: WaitingJob, needed: str) -> WaitingJob:
    return replace(job, waits_for=job.waits_for - {needed})


def _running(job: Standing) -> RunningJob:
    return RunningJob(
        id=job.id,
        placement=job.placement,
        project=job.project,
        priority=job.priority,
        resources=job.resources,
        began=job.began,
        expected_seconds=math.inf if job.expected_seconds is None else job.expected_seconds,
        stopping=job.state in STOPPING,
    )


LEASE_SECONDS = 10.0
"""A scheduler that has not renewed its lease for this long may be replaced."""
IDLE_SECONDS = 2.0
"""It looks at least this often, should nothing wake it."""
PAUSE_SECONDS = 0.02
"""Between two looks, so that a burst of submissions is decided about together and leaves the processor to the API."""
log = logging.getLogger("finery.scheduler")


class Scheduler:
    """Decides, in a thread of its own between `start` and `stop`."""

    def __init__(self, store: Store, settings: Settings, holder: str) -> None:
        self.store = store
        self.settings = settings
        self.holder = holder
        """Names this server, the same after a restart, so that it need not wait for its own lease to expire."""
        self.board = Board(store)
        self.lease: Lease | None = None
        self.last_decision = Decision()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin deciding."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Decide no more, and leave the lease to others. What runs goes on."""
        self._stop.set()
        self.store.changes.touch({QUEUE})
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None
        if self.lease is not None:
            lease, self.lease = self.lease, None
            try:
                self.store.release(lease)
            except Unavailable as error:
                log.warning("the scheduler's lease was not given back: %s", error)

    def _run(self) -> None:
        while not self._stop.is_set():
            seen = self.store.changes.version(QUEUE)
            try:
                self.step()
            except FineryError as error:
                log.warning("scheduling waits a moment: %s", error)
                self.board.forget()
                self._stop.wait(1.0)
                continue
            except Exception:
                log.exception("scheduling failed and is tried again")
                self.board.forget()
                self._stop.wait(1.0)
                continue
            self._stop.wait(PAUSE_SECONDS)
            self.store.changes.wait(QUEUE, seen, self._idle())

    def _idle(self) -> float:
        return max(0.01, min(IDLE_SECONDS, self.board.queue.next_wake() - time.time()))

    def step(self) -> Decision:
        """Decide once and write it down. Does nothing while another server holds the lease."""
        if not self._leads():
            self.last_decision = Decision()
            return self.last_decision
        self.board.refresh()
        for orphan in self.board.orphans:
            self._fail(orphan)
        decision = choose(self.board.queue, self.board.capacity, time.time(), self.board.usage)
        for preemption in decision.preemptions:
            self._preempt(preemption)
        for start in decision.starts:
            self._start(start)
        for job in decision.unplaceable:
            self._fail(job)
        self.last_decision = decision
        return decision

    def _leads(self) -> bool:
        if self.lease is not None and self.lease.expires - time.time() > LEASE_SECONDS / 2:
            return True
        try:
            if self.lease is not None:
                self.lease = self.store.renew_lease(self.lease, LEASE_SECONDS)
                return True
        except Conflict:
            log.warning("another server schedules now")
        self.lease = self.store.acquire("scheduler", self.holder, LEASE_SECONDS)
        if self.lease is not None:
            self.board.forget()
        return self.lease is not None

    def _start(self, start: Start) -> None:
        host = self.board.capacity.rooms[start.placement[0].host].host  # its own server starts what is placed on it
        try:
            self.store.start(
                start.job,
                start.placement,
                executor=host.executor,
                holder=str(host.info.get("holder", self.holder)),
                lease_seconds=self.settings.lease_seconds,
                scheduler=self.lease,
            )
        except (Conflict, IllegalTransition, NotFound) as error:
            self._overtaken(start.job, error)

    def _preempt(self, preemption: Preemption) -> None:
        message = f"makes room for job '{preemption.favours}', which has a higher priority"
        try:
            self.store.move(
                preemption.job,
                Move.PREEMPT,
                expect=(State.STARTING, State.RUNNING),
                reason=Reason.PREEMPTED,
                message=message,
            )
        except (Conflict, IllegalTransition, NotFound) as error:
            self._overtaken(preemption.job, error)

    def _fail(self, job: Unplaceable) -> None:
        try:
            self.store.move(job.job, Move.FAIL, expect=State.QUEUED, reason=Reason.NO_RESOURCES, message=job.message)
        except (Conflict, IllegalTransition, NotFound) as error:
            self._overtaken(job.job, error)

    def _overtaken(self, job: str, error: FineryError) -> None:
        """A user, or an attempt's end, was faster than the decision: the picture is read anew."""
        log.info("job %s changed while it was decided about: %s", job, error)
        self.board.forget()
