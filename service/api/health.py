"""`/healthz` and Prometheus `/metrics`, at the root and without a token: they tell numbers, no names."""

from __future__ import annotations

import time
from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.context import Service, ServiceOf
from service.api.metrics import WorkMetrics
from service.api.problems import Problem, described
from service.store.hosts import STATES

router = APIRouter(tags=["health"])
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
def healthz(service: ServiceOf) -> Health:
    """200 when the database answers, else 503."""
    if not service.store.healthy():
        raise Problem(503, "The database does not answer.", "unavailable", headers={"Retry-After": "5"})
    return Health(version=version())


class Measurements:
    """The counters of one application; jobs and hosts are counted when somebody asks."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.registry = CollectorRegistry()
        self.requests = Counter("finery_http_requests_total", "Requests by route and status.", ["method", "route", "status"], registry=self.registry)
        self.seconds = Histogram("finery_http_request_seconds", "Time to the first byte of an answer.", ["method", "route"], buckets=BUCKETS, registry=self.registry)
        self.registry.register(self)
        self.registry.register(WorkMetrics(service))

    def collect(self) -> Iterator[Metric]:
        """Jobs by state, hosts by state, GPUs held and free."""
        jobs = GaugeMetricFamily("finery_jobs", "Jobs by state.", labels=["state"])
        for state, count in self._service.store.count().items():
            jobs.add_metric([state], count)
        yield jobs
        found = self._service.store.hosts()
        hosts = GaugeMetricFamily("finery_hosts", "Hosts by state.", labels=["state"])
        for word in STATES:
            hosts.add_metric([word], sum(host.state == word for host in found))
        yield hosts
        held = len(self._service.store.slot_holders())
        gpus = GaugeMetricFamily("finery_gpus", "GPUs by whether a job holds them.", labels=["held"])
        gpus.add_metric(["true"], held)
        gpus.add_metric(["false"], sum(len(host.slots) for host in found) - held)
        yield gpus


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
def metrics(service: ServiceOf) -> Response:
    """Numbers for Prometheus."""
    assert service.measurements is not None
    return Response(generate_latest(service.measurements.registry), media_type=CONTENT_TYPE_LATEST)


def route_of(scope: Scope) -> str:
    """The template of the path, such as /api/v1/jobs/{job_id}; included routers know theirs without the prefix."""
    path = getattr(scope.get("route"), "path", None)
    if path is None:
        return "unknown"
    prefix = next((each for each in ("/api/v1", "/v1") if str(scope["path"]).startswith(f"{each}/")), "")
    return str(path) if str(path).startswith(prefix) else f"{prefix}{path}"


class Measured:
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
                measurements.requests.labels(scope["method"], route, str(message["status"])).inc()
                measurements.seconds.labels(scope["method"], route).observe(time.perf_counter() - begun)
            await send(message)

        await self.app(scope, receive, sent)
