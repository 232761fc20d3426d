"""`/healthz` and Prometheus `/metrics`, at the root and without a token: numbers, no names.

Requests are counted as they come. Waits, outcomes, disk and isolation are counted in the store when somebody asks, at
most every few seconds. No label has a value that a client can invent: outcomes, states and modes are words of the
program.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Sequence

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import disk
from service.api.context import Service, ServiceOf, refuse_busy
from service.api.problems import Problem, described
from service.store.disk_usage import KINDS, DiskUsage
from service.store.errors import Unavailable
from service.store.hosts import STATES
from service.store.store import WAIT_BUCKETS, Counts

FRESH_SECONDS = 5.0
"""So long a count is told again: several scrapers cost no more than one."""
PROBED_SECONDS = 1.0
"""So long the database is not written again for who asks whether it can be: anybody may ask, as often as they like."""
NEAR = 0.9
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
        yield from _kept(self._service.store.disk_usages())
        reported = [host.info.get("isolation") for host in self._service.store.hosts() if host.state != "down"]
        modes = [str(each.get("mode")) if isinstance(each, dict) else "none" for each in reported]
        isolation = GaugeMetricFamily(
            "finery_isolation", "Hosts by the isolation that is in force for their attempts.", labels=["mode"]
        )
        for mode in MODES:
            isolation.add_metric([mode], sum(each == mode or (mode == "other" and each not in MODES) for each in modes))
        yield isolation


def _kept(usages: Sequence[DiskUsage]) -> Iterator[Metric]:
    """Sums over the projects: their names are for those with a token."""
    kept = GaugeMetricFamily("finery_kept_bytes", "What all projects keep on the disk.", labels=["kind"])
    for kind in KINDS:
        kept.add_metric([kind], sum(getattr(usage, kind) for usage in usages))
    yield kept
    limited = [usage for usage in usages if usage.limit is not None]
    full = sum(usage.full for usage in limited)
    near = sum(not usage.full and usage.total >= NEAR * (usage.limit or 0) for usage in limited)
    quotas = GaugeMetricFamily(
        "finery_disk_quota_projects", f"Projects with a limit on the disk; near from {NEAR:.0%} of it.", labels=["fill"]
    )
    for fill, count in (("full", full), ("near", near), ("below", len(limited) - full - near)):
        quotas.add_metric([fill], count)
    yield quotas


def _work(counts: Counts) -> Iterator[Metric]:
    wait = HistogramMetricFamily("finery_queue_wait_seconds", "From a job's submission to its first attempt.")
    total, buckets = 0, []
    for limit, count in zip((*WAIT_BUCKETS, float("inf")), counts.waits, strict=True):
        total += count
        buckets.append(("+Inf" if limit == float("inf") else str(limit), float(total)))
    wait.add_metric([], buckets, counts.waited)
    yield wait
    yield GaugeMetricFamily(
        "finery_oldest_queued_seconds", "How long the oldest waiting job has waited.", value=counts.oldest_queued
    )
    ended = CounterMetricFamily("finery_attempts_ended", "Attempts by how they ended.", labels=["outcome"])
    seconds = CounterMetricFamily("finery_attempt_seconds", "Seconds that ended attempts ran.", labels=["outcome"])
    for outcome, (number, ran) in counts.ended.items():
        ended.add_metric([outcome], number)
        seconds.add_metric([outcome], ran)
    yield ended
    yield seconds
    yield CounterMetricFamily("finery_events", "Events of jobs that were taken in.", value=counts.events)
    yield GaugeMetricFamily(
        "finery_leases_expired",
        "Attempts whose server is silent and that nobody has taken over.",
        value=counts.leases_expired,
    )
    yield GaugeMetricFamily(
        "finery_uploads_in_progress", "Uploads that were begun and not completed.", value=counts.uploads
    )


router = APIRouter(tags=["health"])
PROBES = ("/healthz", "/livez", "/readyz")
"""Asked by whatever watches the server, which may know no name of it."""
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Health(BaseModel):
    """The service works."""

    status: str = "ok"
    version: str


def version() -> str:
    """Finery's version."""
    from importlib import metadata

    try:
        return metadata.version("finery")
    except metadata.PackageNotFoundError:
        return "0"


@router.get("/healthz", responses={503: described(503)[503]})
async def healthz(service: ServiceOf) -> Health:
    """200 when the database answers, else 503."""
    if not await service.lanes.health.run("", service.store.healthy):
        raise Problem(503, "The database does not answer.", "unavailable", headers={"Retry-After": "5"})
    return Health(version=version())


@router.get("/livez")
async def livez() -> Health:
    """200 while the process answers at all. What restarts servers asks this: a full disk or a database that is
    away is no reason."""
    return Health(version=version())


@router.get("/readyz", responses={503: described(503)[503]})
async def readyz(service: ServiceOf) -> Health:
    """200 when jobs can be taken and run: the database can be written, the disk has its reserve, the supervisor
    works. Else 503 with reasons."""
    lacking = await service.lanes.health.run("", _lacking, service)
    if lacking:
        raise Problem(503, " ".join(lacking), "not_ready", headers={"Retry-After": "5"})
    return Health(version=version())


def _lacking(service: Service) -> list[str]:
    """What keeps the service from its work, a sentence each."""
    settings, problems = service.settings, []
    if not service.store.healthy():
        problems.append("The database does not answer.")
    elif not service.store.writable(within=PROBED_SECONDS):
        problems.append("The database cannot be written.")
    if (full := disk.sentence(settings.home, settings.disk_reserve)) is not None:
        problems.append(full)
    return problems + [
        f"The supervisor's thread '{name}' has ended; look at the log, and start the server again."
        for name in service.stopped()
    ]


class Measurements:
    """The counters of one application; jobs and hosts are counted when somebody asks."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "finery_http_requests_total",
            "Requests by route and status.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "finery_http_request_seconds",
            "Time to the first byte of an answer.",
            ["method", "route"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.registry.register(self)
        self.registry.register(WorkMetrics(service))
        self.registry.register(service.served.metrics)

    def collect(self) -> Iterator[Metric]:
        """Jobs by state, hosts by state, GPUs held and free; nothing while the database is away, which
        `finery_database_up` tells."""
        try:
            states, rows = self._service.store.count(), self._service.store.hosts()
            held = self._service.store.slot_holders()
        except Unavailable:
            return
        jobs = GaugeMetricFamily("finery_jobs", "Jobs by state.", labels=["state"])
        for state, count in states.items():
            jobs.add_metric([state], count)
        yield jobs
        hosts = GaugeMetricFamily("finery_hosts", "Hosts by state.", labels=["state"])
        for word in STATES:
            hosts.add_metric([word], sum(host.state == word for host in rows))
        yield hosts
        places = [(host.name, slot.index) for host in rows if host.state == "up" for slot in host.slots]
        gpus = GaugeMetricFamily(
            "finery_gpus", "GPUs that a job holds, and those of hosts that are up that none holds.", labels=["held"]
        )
        gpus.add_metric(["true"], len(held))
        gpus.add_metric(["false"], sum(place not in held for place in places))
        yield gpus


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
def metrics(request: Request, service: ServiceOf) -> Response:
    """Numbers for Prometheus. Counting them asks the database, so that one address may not do it as often as it
    likes."""
    refuse_busy(service.public.take(request.client.host if request.client else ""))
    assert service.measurements is not None
    return Response(generate_latest(service.measurements.registry), media_type=CONTENT_TYPE_LATEST)


def route_of(scope: Scope) -> str:
    """The template of the path, such as /api/v1/jobs/{job_id}; included routers know theirs without the prefix."""
    path = getattr(scope.get("route"), "path", None)
    if path is None:
        return "unknown"
    prefix = next((each for each in ("/api/v1", "/v1") if str(scope["path"]).startswith(f"{each}/")), "")
    return str(path) if str(path).startswith(prefix) else f"{prefix}{path}"


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def method_of(scope: Scope) -> str:
    """The method, or `other`: a client may invent as many as it likes, and each would be a series."""
    return scope["method"] if scope["method"] in METHODS else "other"


class RequestCounter:
    """Middleware that counts requests by route, never by address: ids would make a series each."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = route_of(scope)
                measurements: Measurements = scope["app"].state.service.measurements
                measurements.requests.labels(method_of(scope), route, str(message["status"])).inc()
                measurements.seconds.labels(method_of(scope), route).observe(time.perf_counter() - begun)
            await send(message)

        await self.app(scope, receive, sent)
