"""Templates and the headers of every page, and numbers, sizes and times in the words of the pages.

Headers: strict content security policy, no caching. The theme is a cookie.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from pipelines.core.yaml_positions import write_yaml
from service.jobs.states import ACTIVE, State
from service.web.sessions import Visitor

UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))


def ago(seconds: float | None, now: float | None = None) -> str:
    """How long ago, or in how long: `12 s ago`, `3 h ago`, `in 5 min`; the date when it is more than a month."""
    if seconds is None:
        return ""
    difference = (time.time() if now is None else now) - seconds
    if abs(difference) > 30 * 86_400:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
    if abs(difference) < 2:
        return "now"
    words = f"{int(abs(difference))} s"
    for unit, size in UNITS:
        if abs(difference) >= size:
            words = f"{int(abs(difference) // size)} {unit}"
            break
    return f"{words} ago" if difference > 0 else f"in {words}"


def exact(seconds: float | None) -> str:
    """`2026-11-21 21:30:05 UTC`."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(seconds: float | None) -> str:
    """As `<time datetime>` wants it."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def duration(seconds: float | None) -> str:
    """`0.4 s`, `42 s`, `3 min 5 s`, `2 h 10 min`, `4 d 2 h`."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def size(count: float | None) -> str:
    """Bytes: `512 B`, `1.5 kB` … in thousands, as disks are sold; memory of GPUs is usually told in GiB, see
    `memory`."""
    if count is None:
        return ""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def memory(count: float | None) -> str:
    """Bytes of main or GPU memory: `139 GiB`."""
    if not count:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.3g} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def count(number: object) -> str:
    """A whole number with its thousands apart: `1,234,567`."""
    return f"{number:,}" if isinstance(number, int) else number_text(number)


def number_text(value: object) -> str:
    """A measured number with four figures that matter, and no more: `0.8423`, `12.35`, `1.2e-05`, `1,234`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.3e}"
    if abs(value) < 0.001:
        return f"{value:.2e}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, 4 - whole)}f}"


def short_id(identifier: str) -> str:
    """The end of an id, enough to tell it apart by eye: `job-…k3v9q2`."""
    kind, hyphen, rest = identifier.partition("-")
    return f"{kind}-…{rest[-6:]}" if hyphen and len(rest) > 10 else identifier


STATIC = Path(__file__).parent / "static"
TEMPLATES = Path(__file__).parent / "templates"
THEMES = ("auto", "light", "dark")
THEME_COOKIE = "finery_theme"
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
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
    State.QUEUED: "○",
    State.STARTING: "◔",
    State.RUNNING: "●",
    State.RECOVERING: "↻",
    State.PAUSING: "◫",
    State.PAUSED: "◫",
    State.CANCELLING: "⊘",
    State.CANCELLED: "⊘",
    State.SUCCEEDED: "✓",
    State.FAILED: "✕",
}
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
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        ago=ago,
        exact=exact,
        iso=iso,
        duration=duration,
        size=size,
        memory=memory,
        number=number_text,
        count=count,
        short_id=short_id,
        yaml=lambda value: write_yaml({"value": value})[7:].strip(),
        path=lambda text: quote(str(text), safe=""),
        jsonish=lambda value: json.dumps(value, ensure_ascii=False, default=str),
        ticked=ticked,
    )
    made.globals.update(asset=asset, signs=SIGNS, active=ACTIVE, State=State, query=_query)
    return made


def ticked(text: str) -> Markup:
    """A sentence of the schema with its `names` as code."""
    parts = str(text).split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in enumerate(parts)
    )


def _query(before: Mapping[str, object] | None = None, **changes: Any) -> str:
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
        name,
        visitor=visitor,
        theme=theme_of(request),
        here=request.url.path,
        address=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        **context,
    )
    return HTMLResponse(text, status, HEADERS)
