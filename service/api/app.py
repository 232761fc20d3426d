"""The application: routes, pages, limits, errors and the OpenAPI document put together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service import disk, logs
from service.api import administration, files, health, jobs, models, predict, problems, registry, watching
from service.api.context import make_service
from service.api.limits import BodyLimit
from service.checking import Checker, checker_of
from service.openai import eval_comparison, evals, grading, inference, permissions
from service.openai import routes as openai_routes
from service.settings import Settings
from service.store.store import Store
from service.web import access, compare, job, submit, trying
from service.web import jobs as job_pages
from service.web import models as model_pages
from service.web import project as project_pages
from service.web import registry as registry_pages
from service.web.rendering import STATIC, Assets
from service.web.sessions import Sessions

DESCRIPTION = """
Submit recipes, watch them, and take what they publish. Send `Authorization: Bearer fin_…` with every request.
Errors are problem+json (RFC 9457); those of a recipe list every mistake with its line and key.
""".strip()
BODY_BYTES = 2 << 20
"""Of requests that carry no file."""
CHUNKS = re.compile(r"/api/v1/files/[^/]+|/v1/files")
SPENDS = re.compile(
    r"/api/v1/jobs|/api/v1/files(/[^/]+)?|/v1/files|/v1/fine_tuning/jobs|/v1/evals(/[^/]+/runs)?|/submit"
)
"""What takes room on the disk."""
ENVELOPE_BYTES = 1 << 20
"""What a multipart form may add to its file."""
PAGE_HEADERS = {b"x-content-type-options": b"nosniff", b"referrer-policy": b"no-referrer", b"x-frame-options": b"DENY"}
HEADERS = {**PAGE_HEADERS, b"cache-control": b"no-store"}
PAGES = (access, job_pages, job, compare, model_pages, registry_pages, trying, submit, project_pages)


def create_app(
    settings: Settings, store: Store, wake: Callable[[], None] = lambda: None, checker: Checker | None = None
) -> FastAPI:
    """The application on an open store. `wake` is called whenever a job was submitted or is to be stopped; it must be
    quick.

    `checker` checks recipes; without one it is made of the settings, and its processes begin with the first recipe.
    """
    app = FastAPI(
        title="Finery",
        version=health.version(),
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    equip(app, settings, store, wake, checker)
    problems.install(app)
    app.include_router(health.router)
    described: list[bytes] = []

    @app.get("/api/v1/openapi.json", include_in_schema=False)
    async def openapi_document() -> Response:
        """It names routes and no data, so that it needs no token; it is written once."""
        if not described:
            described.append(json.dumps(app.openapi()).encode())
        return Response(described[0], media_type="application/json")

    for part in (jobs, watching, files, models, registry, predict, administration, eval_comparison):
        app.include_router(part.router, prefix="/api/v1")
    for part in (openai_routes, grading, evals, permissions, inference):
        app.include_router(part.router, prefix="/v1")
    mount(app)
    app.add_middleware(administration.Acting)
    app.add_middleware(BodyLimit, limit_of=_limit, refuse=refuse_body)
    app.add_middleware(DiskGuard)
    app.add_middleware(KnownHosts)
    app.add_middleware(health.RequestCounter)
    app.add_middleware(SafeHeaders)
    app.add_middleware(logs.Requests, route_of=health.route_of, method_of=health.method_of)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def equip(
    app: FastAPI, settings: Settings, store: Store, wake: Callable[[], None], checker: Checker | None = None
) -> None:
    """Give the application its store, settings and counters."""
    service = make_service(settings, store, wake, checker or checker_of(settings))
    service.measurements = health.Measurements(service)
    administration.refresh(service)
    app.state.service = service


def mount(app: FastAPI) -> None:
    """Add every page and the static files. The API must have set `app.state.service`."""
    service = app.state.service
    app.state.web_sessions = Sessions(service.store, service.settings.home)
    app.state.try_host = trying.ServiceHost(service)
    for module in PAGES:
        app.include_router(module.router)
    app.mount("/static", Assets(directory=STATIC), name="static")


def _limit(scope: Scope) -> int:
    """How long the body of a request may be."""
    if scope["method"] in ("POST", "PATCH", "PUT") and CHUNKS.fullmatch(scope["path"]):
        settings: Settings = scope["app"].state.service.settings
        return settings.max_file_bytes + ENVELOPE_BYTES
    return BODY_BYTES


def refuse_body(scope: Scope, error: HTTPException) -> ASGIApp:
    """The answer to a body that is too long."""
    response: Response = problems.respond(Request(scope), problems.problem_of(error))
    return response


class DiskGuard:
    """Middleware that answers 507 to requests for more work and more files while the disk has no reserve; all else
    goes on."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("POST", "PATCH") and SPENDS.fullmatch(scope["path"]):
            settings: Settings = scope["app"].state.service.settings
            full = disk.sentence(settings.home, settings.disk_reserve)
            if full is not None:
                await problems.respond(Request(scope), problems.Problem(507, full, "disk_full"))(scope, receive, send)
                return
        await self.app(scope, receive, send)


class KnownHosts:
    """Middleware that answers 421 to a request for a host that is not ours.

    A page elsewhere may give its own name our address (DNS rebinding): its scripts then read what we answer, unless
    the name is asked.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in health.PROBES:
            await self.app(scope, receive, send)
            return
        allowed = scope["app"].state.service.settings.host_names
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if allowed is None or (len(given) == 1 and _name(given[0]) in allowed):
            await self.app(scope, receive, send)
            return
        problem = problems.Problem(
            421,
            "This server is not known by the name in the header Host; its admin lists names in FINERY_ALLOWED_HOSTS.",
            "unknown_host",
        )
        await problems.respond(Request(scope), problem)(scope, receive, send)


def _name(host: str) -> str:
    """The header Host without its port."""
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) and not host.endswith("]") else host
    return name.strip("[]").rstrip(".").lower()


class SafeHeaders:
    """Middleware that tells browsers not to guess, not to frame and not to tell where they came from."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                added = HEADERS if scope["path"].startswith(("/api/", "/v1/")) else PAGE_HEADERS
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name, value) for name, value in added.items() if name not in names),
                ]
            await send(message)

        await self.app(scope, receive, sent if scope["type"] == "http" else send)


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the schemas that only hand-written bodies and errors name."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"]["schemas"]
        for model in (problems.ProblemDocument, jobs.Submission):
            made = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(made.pop("$defs", {}))
            schemas[model.__name__] = made
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        app.openapi_schema = document
    return app.openapi_schema
