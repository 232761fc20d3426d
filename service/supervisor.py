"""The supervisor that `finery serve` embeds: it schedules jobs and sees every attempt through to its proven end.

Several servers may share a PostgreSQL database. Each starts attempts on the hosts that its executor reaches; a lease
elects the one that decides. A server that starts takes over the attempts on its hosts, whoever began them.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence

from service.attempts.preparing import PIPELINES
from service.attempts.stage_store import free_stages
from service.attempts.watching import Watcher
from service.disk import keep_ballast, sweep, sweep_folders, sweep_jobs, sweep_models
from service.executors.protocol import Executor, HostCapacity
from service.executors.registry import executor_of
from service.jobs.job import GpuSlot, Host
from service.quotas import DiskMeter
from service.scheduler.loop import Scheduler
from service.settings import Settings
from service.store.errors import Unavailable
from service.store.store import Store

REPORT_SECONDS = 5.0
SWEEP_SECONDS = 3600.0
"""How often unfinished uploads are looked at; the first time when the server starts."""
RETAIN_SECONDS = 60.0
"""How often jobs are looked for whose time after their end is over."""

log = logging.getLogger(__name__)


class Supervisor:
    """The scheduler, the watcher and the keeper of leases, as threads of one process."""

    def __init__(
        self, settings: Settings, store: Store, executor: Executor | None = None, pipelines: Sequence[str] = PIPELINES
    ) -> None:
        """`pipelines` is the command that runs an attempt. Raises CommandError when the executor that the settings
        name cannot be reached."""
        self._settings = settings
        self._store = store
        self.executor = executor if executor is not None else executor_of(settings)
        self.holder = f"{socket.gethostname()}:{settings.home}"
        """The same after a restart, so that a new server process speaks for the attempts of the one before at once."""
        self._watcher = Watcher(store, settings, self.executor, self.holder, pipelines)
        self._scheduler = Scheduler(store, settings, self.holder)
        self._meter = DiskMeter(store, settings, self.holder)
        self._stop = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="leases", daemon=True)

    def start(self) -> None:
        """Report the hosts, take over what runs on them, and begin. Returns when the first round is under way."""
        hosts = [host.name for host in self.executor.capacity()]
        try:
            self._report()
            for attempt, job in self._store.adopt(self.holder, self._settings.lease_seconds, hosts=hosts):
                log.info("attempt %s of job %s (%s) is taken over", attempt.id, job.id, job.state)
        # a full disk, say: what is there can be read, and leases that run out are taken over later
        except Unavailable as error:
            log.error("nothing can be written now: %s", error)
        self._keeper.start()
        self._watcher.start()
        self._scheduler.start()
        self._meter.start()

    def stopped(self) -> list[str]:
        """Names of the threads that are no longer at work."""
        threads = {
            "leases": self._keeper,
            "attempts": self._watcher._thread,
            "scheduler": self._scheduler._thread,
            "disk": self._meter.thread,
        }
        return [name for name, thread in threads.items() if thread is None or not thread.is_alive()]

    def stop(self) -> None:
        """Stop deciding and watching. Attempts keep running; the next start takes them over."""
        self._stop.set()
        self._meter.stop()
        self._scheduler.stop()
        self._watcher.stop()
        if self._keeper.is_alive():
            self._keeper.join()
        self.executor.close()

    def wake(self) -> None:
        """Something was submitted or asked for: look at once. Cheap, from any thread."""
        self._store.changes.touch(["jobs", "attempts"])

    def _keep(self) -> None:
        """Renew the leases and report the hosts, until stopped."""
        renewed = reported = time.monotonic()
        swept = retained = float("-inf")
        period = min(self._settings.lease_seconds / 4, REPORT_SECONDS)
        while not self._stop.wait(period):
            try:
                self._store.renew(self.holder, self._settings.lease_seconds)
                renewed = time.monotonic()
                if renewed - reported >= REPORT_SECONDS:
                    self._report()
                    reported = renewed
                if renewed - swept >= SWEEP_SECONDS:
                    swept = renewed
                    sweep(self._store, self._settings)
                    free_stages(self._settings)
                    keep_ballast(self._settings.home, self._settings.disk_reserve)
                    sweep_folders(self._store, self._settings)
                    self._store.forget_audit(time.time() - self._settings.audit_days * 86_400)
                if renewed - retained >= RETAIN_SECONDS:
                    retained = renewed
                    sweep_jobs(self._store, self._settings)
                    sweep_models(self._store, self._settings)
                for attempt, job in self._store.claim_expired(
                    self.holder, self._settings.lease_seconds, hosts=self._within_reach()
                ):
                    log.warning("attempt %s of job %s is taken over: its server no longer answers", attempt.id, job.id)
            except Unavailable as error:
                log.warning("leases not renewed for %.0f s: %s", time.monotonic() - renewed, error)
            except Exception:
                log.exception("renewing the leases failed; trying again")

    def _report(self) -> None:
        """What the hosts have now; those that this server reported before and that are gone are down."""
        here = self.executor.capacity()
        for host in here:
            self._store.report_host(_host(host, self.executor, self.holder))
        for gone in self._store.hosts():
            if (
                gone.info.get("holder") == self.holder
                and gone.state != "down"
                and gone.name not in {host.name for host in here}
            ):
                self._store.set_host_state(gone.name, "down")

    def _within_reach(self) -> list[str]:
        """Hosts whose attempts this server may speak for when their own server is silent: its own, and those known to
        be dead.

        An admin who sets a host `down` says that it runs nothing any more; a host that lives reports itself `up` again.
        """
        dead = [host.name for host in self._store.hosts() if host.state == "down"]
        return [*(host.name for host in self.executor.capacity() if host.alive), *dead]


def _host(capacity: HostCapacity, executor: Executor, holder: str) -> Host:
    """`holder` tells the server that decides who starts what it places there."""
    slots = tuple(GpuSlot(gpu.index, gpu.kind, gpu.memory) for gpu in capacity.gpus)
    info = {"holder": holder, "isolation": executor.isolation.document()}
    return Host(
        capacity.name,
        executor.name,
        capacity.cpus,
        capacity.memory,
        slots,
        "up" if capacity.alive else "down",
        time.time(),
        info,
    )
