"""Templates and the headers of every page: strict content security policy, no caching, theme by cookie."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from pipelines.marks import write_yaml
from service.jobs.states import ACTIVE, State
from service.web import words
from service.web.sessions import Visitor

STATIC = Path(__file__).parent / "static"
THEMES = ("auto", "light", "dark")
THEME_COOKIE = "finery_theme"
POLICY = "; ".join(
    (
        "default-src 'self'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'", "object-src 'none'",
        "base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'",
    )
)  # fmt: skip
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
    "Vary": "Cookie, HX-Request",
}
SIGNS = {
    State.QUEUED: "○", State.STARTING: "◔", State.RUNNING: "●", State.RECOVERING: "↻", State.PAUSING: "◫", State.PAUSED: "◫",
    State.CANCELLING: "⊘", State.CANCELLED: "⊘", State.SUCCEEDED: "✓", State.FAILED: "✕",
}  # fmt: skip
"""A shape beside the word, so that a state is not told by colour alone."""


class Assets(StaticFiles):
    """The static files; one that is asked for with its own digest is kept by the browser for good."""

    def file_response(self, full_path: Any, stat_result: Any, scope: Scope, status_code: int = 200) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["X-Content-Type-Options"] = "nosniff"
        if b"v=" in scope.get("query_string", b""):
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


@lru_cache(maxsize=64)
def asset(name: str) -> str:
    """The address of a static file, with its digest."""
    return f"/static/{name}?v={hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates: escaped, and strict about names."""
    made = Environment(
        loader=PackageLoader("service.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update(
        ago=words.ago, exact=words.exact, iso=words.iso, duration=words.duration, size=words.size, memory=words.memory,
        number=words.number_text, count=words.count, short_id=words.short_id, yaml=lambda value: write_yaml({"value": value})[7:].strip(),
        path=lambda text: quote(str(text), safe=""), jsonish=lambda value: json.dumps(value, ensure_ascii=False, default=str),
        ticked=ticked,
    )  # fmt: skip
    made.globals.update(asset=asset, signs=SIGNS, active=ACTIVE, State=State, query=_query)
    return made


def ticked(text: str) -> Markup:
    """A sentence of the schema with its `names` as code."""
    parts = str(text).split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in enumerate(parts))


def _query(before: Mapping[str, Any] | None = None, **changes: Any) -> str:
    """A query string: what was asked before with some changes, empty values left out."""
    values = {key: value for key, value in ({**(before or {}), **changes}).items() if value not in (None, "", [], ())}
    return f"?{urlencode(values, doseq=True)}" if values else "?"


def theme_of(request: Request) -> str:
    """`auto`, `light` or `dark`, as the visitor chose."""
    chosen = request.cookies.get(THEME_COOKIE, "auto")
    return chosen if chosen in THEMES else "auto"


def partial(name: str, **context: Any) -> str:
    """A part of a page."""
    return environment().get_template(name).render(**context)


def page(request: Request, name: str, visitor: Visitor | None, status: int = 200, **context: Any) -> HTMLResponse:
    """An answer from a template."""
    text = partial(
        name, visitor=visitor, theme=theme_of(request), here=request.url.path, address=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        **context,
    )  # fmt: skip
    return HTMLResponse(text, status, HEADERS)
