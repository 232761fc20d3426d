"""What `/metrics` tells of the work and its place: waits, outcomes, disk, isolation. Counted in the store, at most every few seconds.

No label has a value that a client can invent: outcomes, states and modes are words of the program.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from service.store.counting import WAIT_BUCKETS, Counts
from service.store.errors import Unavailable

if TYPE_CHECKING:
    from service.api.context import Service

FRESH_SECONDS = 5.0
"""So long a count is told again: several scrapers cost no more than one."""
MODES = ("bubblewrap", "landlock", "container", "host", "none", "other")


class WorkMetrics:
    """A collector for Prometheus."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._counts: Counts | None = None
        self._counted = 0.0

    def _fresh(self) -> Counts | None:
        """The newest count; None while the database does not answer. Whoever comes while it is made waits for it."""
        with self._lock:
            if self._counts is None or time.monotonic() - self._counted > FRESH_SECONDS:
                try:
                    self._counts = self._service.store.counts()
                except Unavailable:
                    return None
                self._counted = time.monotonic()
            return self._counts

    def collect(self) -> Iterator[Metric]:
        """Disk first, which is there when the database is not."""
        try:
            disk = shutil.disk_usage(self._service.settings.home)
        except OSError:
            disk = None
        if disk is not None:
            space = GaugeMetricFamily("finery_home_bytes", "The file system that the home lies on.", labels=["space"])
            space.add_metric(["free"], disk.free)
            space.add_metric(["used"], disk.used)
            yield space
        counts = self._fresh()
        yield GaugeMetricFamily("finery_database_up", "Whether the database answers.", value=float(counts is not None))
        if counts is None:
            return
        yield GaugeMetricFamily("finery_database_bytes", "Size of the database.", value=counts.database_bytes)
        yield from _work(counts)
        reported = [host.info.get("isolation") for host in self._service.store.hosts() if host.state != "down"]
        modes = [str(each.get("mode")) if isinstance(each, dict) else "none" for each in reported]
        isolation = GaugeMetricFamily("finery_isolation", "Hosts by the isolation that is in force for their attempts.", labels=["mode"])
        for mode in MODES:
            isolation.add_metric([mode], sum(each == mode or (mode == "other" and each not in MODES) for each in modes))
        yield isolation


def _work(counts: Counts) -> Iterator[Metric]:
    wait = HistogramMetricFamily("finery_queue_wait_seconds", "From a job's submission to its first attempt.")
    total, buckets = 0, []
    for limit, count in zip((*WAIT_BUCKETS, float("inf")), counts.waits, strict=True):
        total += count
        buckets.append(("+Inf" if limit == float("inf") else str(limit), float(total)))
    wait.add_metric([], buckets, counts.waited)
    yield wait
    yield GaugeMetricFamily("finery_oldest_queued_seconds", "How long the oldest waiting job has waited.", value=counts.oldest_queued)
    ended = CounterMetricFamily("finery_attempts_ended", "Attempts by how they ended.", labels=["outcome"])
    seconds = CounterMetricFamily("finery_attempt_seconds", "Seconds that ended attempts ran.", labels=["outcome"])
    for outcome, (number, ran) in counts.ended.items():
        ended.add_metric([outcome], number)
        seconds.add_metric([outcome], ran)
    yield ended
    yield seconds
    yield CounterMetricFamily("finery_events", "Events of jobs that were taken in.", value=counts.events)
    yield GaugeMetricFamily("finery_leases_expired", "Attempts whose server is silent and that nobody has taken over.", value=counts.leases_expired)
    yield GaugeMetricFamily("finery_uploads_in_progress", "Uploads that were begun and not completed.", value=counts.uploads)
