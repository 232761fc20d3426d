"""The buttons of a job: pause, resume, cancel, retry and its priority."""

from __future__ import annotations

from typing import Annotated

from fastapi import Form, Request
from fastapi.responses import RedirectResponse
from starlette.responses import Response

from service.api.problems import Problem
from service.jobs.transitions import Move
from service.web.job_view import ASKED, job_view
from service.web.rendering import HEADERS, page
from service.web.sessions import Visitor
from service.web.visiting import Submitting, new_router, service_of

router = new_router()
LARGEST_PRIORITY = 1_000


@router.post("/jobs/{job_id}/priority")
def priority(request: Request, visitor: Submitting, job_id: str, priority: Annotated[str, Form(max_length=20)]) -> Response:
    """Change a job's priority."""
    service = service_of(request)
    try:
        number = int(priority)
    except ValueError:
        number = LARGEST_PRIORITY + 1
    if abs(number) > LARGEST_PRIORITY:
        raise Problem(422, f"The priority is '{priority}', must be a whole number from -{LARGEST_PRIORITY} to {LARGEST_PRIORITY}.", "invalid_request")
    service.store.set_priority(job_id, number, visitor.project)
    service.wake()
    return _answer(request, visitor, job_id)


@router.post("/jobs/{job_id}/{move}")
def act(request: Request, visitor: Submitting, job_id: str, move: str) -> Response:
    """Pause, resume, cancel or retry a job. What its state does not allow is a 409 in words."""
    if move not in [str(each) for each in ASKED]:
        raise Problem(404, f"A job cannot be asked to '{move}'.", "not_found")
    service = service_of(request)
    service.store.move(job_id, Move(move), project=visitor.project)
    service.wake()
    return _answer(request, visitor, job_id)


def _answer(request: Request, visitor: Visitor, job_id: str) -> Response:
    """The new head of the page for HTMX, the page itself for everybody else."""
    if "hx-request" not in request.headers:
        return RedirectResponse(f"/jobs/{job_id}", 303, HEADERS)
    view = job_view(service_of(request), visitor, job_id)
    return page(request, "parts/job_head.html.jinja", visitor, view=view, job=view.job)
