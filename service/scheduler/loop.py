"""The scheduler: wakes when something changed, decides, and writes the decision into the store.

Several servers may run on one database; the one that holds the `scheduler` lease decides, and every start carries the
lease's fencing token, so that one that was replaced without noticing starts nothing. Starting and stopping processes
is not done here: `service.attempts` acts on what is written.
"""

from __future__ import annotations

import logging
import threading
import time

from pipelines.errors import FineryError
from service.jobs.job import Lease
from service.jobs.states import Reason, State
from service.jobs.transitions import IllegalTransition, Move
from service.scheduler.board import Board
from service.scheduler.choose import choose
from service.scheduler.values import Decision, Preemption, Start, Unplaceable
from service.settings import Settings
from service.store.changes import QUEUE
from service.store.errors import Conflict, NotFound, Unavailable
from service.store.store import Store

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
                start.job, start.placement, executor=host.executor, holder=str(host.info.get("holder", self.holder)),
                lease_seconds=self.settings.lease_seconds, scheduler=self.lease,
            )  # fmt: skip
        except (Conflict, IllegalTransition, NotFound) as error:
            self._overtaken(start.job, error)

    def _preempt(self, preemption: Preemption) -> None:
        message = f"makes room for job '{preemption.favours}', which has a higher priority"
        try:
            self.store.move(
                preemption.job, Move.PREEMPT, expect=(State.STARTING, State.RUNNING), reason=Reason.PREEMPTED, message=message
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
