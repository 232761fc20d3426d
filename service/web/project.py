"""The visitor's project: what it keeps on the disk and what takes the most; for admins all projects, and their limits.

Anything else about projects is administered with `finery project` or the API.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import Form, Request
from fastapi.responses import RedirectResponse
from starlette.responses import Response

from service.api.problems import Problem
from service.store.projects import PROJECT
from service.web.access import Seen, Sent, new_router, service_of
from service.web.rendering import HEADERS, page

router = new_router()
GIGABYTE = 1e9
KINDS = (
    ("files", "Uploaded files"),
    ("jobs", "Folders of jobs"),
    ("models", "Published models"),
    ("evals", "Evals and their runs"),
    ("stages", "Finished stages, for later jobs to reuse"),
    ("downloads", "Downloads from the Hub"),
)


@router.get("/project")
def project(request: Request, visitor: Seen) -> Response:
    """The project that the visitor submits to; beside it, for admins, all projects."""
    store = service_of(request).store
    context: dict[str, Any] = {
        "usage": store.disk_usage(visitor.home),
        "largest": store.largest(visitor.home),
        "usages": store.disk_usages() if visitor.is_admin else [],
    }
    return page(request, "project.html.jinja", visitor, kinds=KINDS, gigabytes=gigabytes, **context)


@router.post("/projects/{name}")
def set_limit(
    request: Request, visitor: Sent, name: str, gigabytes: Annotated[str, Form(max_length=40)] = ""
) -> Response:
    """Set what a project may keep on the disk; an empty field lifts the limit."""
    if not visitor.is_admin:
        raise Problem(403, "Only an admin's token sets limits.", "forbidden")
    if PROJECT.fullmatch(name) is None:
        raise Problem(404, "There is no project of that name.", "not_found")
    service_of(request).store.set_project(name, max_bytes=bytes_of(gigabytes))
    return RedirectResponse("/project", 303, HEADERS)


def bytes_of(text: str) -> int | None:
    """What was written into the field, in bytes; None for nothing. Raises Problem."""
    if not text.strip():
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1e9:
        raise Problem(422, f"'{text}' is no limit: write gigabytes, or nothing for no limit.", "invalid_request")
    return round(number * GIGABYTE)


def gigabytes(limit: int | None) -> str:
    """A limit as the field shows it."""
    return "" if limit is None else f"{limit / GIGABYTE:.9f}".rstrip("0").rstrip(".")
