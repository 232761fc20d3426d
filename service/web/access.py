"""Who may see a page and press its buttons: signing in and out, CSRF tokens and roles, errors as pages."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Form, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from pipelines.core.errors import FineryError
from service.api.context import Service, authenticate
from service.api.problems import TITLES, Problem, problem_of
from service.store.audit import identify
from service.store.projects import parts
from service.web.rendering import HEADERS, THEME_COOKIE, THEMES, page
from service.web.sessions import COOKIE, LIFETIME, VISIT_COOKIE, Sessions, Visitor

log = logging.getLogger(__name__)
SAFE_NEXT = "/"


class SignInNeeded(Exception):
    """Nobody is signed in."""


def service_of(request: Request) -> Service:
    """What the routes of the API share; the pages use the same."""
    service: Service = request.app.state.service
    return service


def sessions_of(request: Request) -> Sessions:
    """The maker and reader of session cookies."""
    sessions: Sessions = request.app.state.web_sessions
    return sessions


def visitor_of(request: Request) -> Visitor | None:
    """Who asks, signed in or not; None without a valid cookie."""
    return sessions_of(request).read(request.cookies.get(COOKIE))


def signed_in(request: Request) -> Visitor:
    """Who asks. Raises SignInNeeded, or Problem 404 or 429."""
    if "\x00" in request.url.path or "%00" in request.url.query:  # no database takes it, so nothing has such a name
        raise Problem(404, "There is nothing of that name.", "not_found")
    visitor = visitor_of(request)
    if visitor is None or visitor.token is None:
        raise SignInNeeded
    request.state.token_id = visitor.token.id
    identify(visitor.token.id, visitor.token.role, visitor.token.project, request.scope)
    wait = service_of(request).limiter.take(visitor.token.id)
    if wait > 0:
        raise Problem(
            429,
            f"Too many requests; try again in {wait:.0f} s.",
            "rate_limited",
            headers={"Retry-After": str(max(1, round(wait)))},
        )
    return visitor


async def with_form(request: Request) -> Visitor:
    """Who sends a form that carries their CSRF token. Raises SignInNeeded, or Problem 403."""
    visitor = signed_in(request)
    await check_form(request, visitor)
    return visitor


async def check_form(request: Request, visitor: Visitor | None) -> None:
    """Refuse a form that another site, or an outdated page, sent. Raises Problem 403."""
    given = request.headers.get("x-csrf-token") or str((await request.form()).get("csrf", ""))
    if (
        visitor is None
        or not hmac.compare_digest(given.encode(), visitor.csrf.encode())
        or request.headers.get("sec-fetch-site") == "cross-site"
    ):
        raise Problem(
            403, "This form is outdated or was not sent from this site; load the page again and repeat.", "bad_form"
        )


async def submitting(visitor: Annotated[Visitor, Depends(with_form)]) -> Visitor:
    """Who sends a form that changes something. Raises Problem 403 for a viewer."""
    if not visitor.may_submit:
        raise Problem(403, "Your token is a viewer's: it may look, but not change anything.", "forbidden")
    return visitor


def administering(visitor: Annotated[Visitor, Depends(signed_in)]) -> Visitor:
    """Who looks at what belongs to no project. Raises Problem 403 for everybody but an admin."""
    if not visitor.is_admin:
        raise Problem(403, "This page is for admins: hosts are shared by all projects.", "forbidden")
    return visitor


Seen: Any = Annotated[Visitor, Depends(signed_in)]
Sent: Any = Annotated[Visitor, Depends(with_form)]
Submitting: Any = Annotated[Visitor, Depends(submitting)]
Administering: Any = Annotated[Visitor, Depends(administering)]


def set_cookie(request: Request, response: Response, name: str, cookie: str) -> None:
    """Give the browser a session or a visit: no script reads it, no other site sends it."""
    response.set_cookie(
        name,
        cookie,
        max_age=int(LIFETIME),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path="/",
    )


def local_path(text: str | None) -> str:
    """A path of this site to go on to after signing in; `/` for anything else."""
    if (
        text
        and text.startswith("/")
        and not text.startswith(("//", "/\\", "/sign"))
        and "\\" not in text
        and text.isprintable()
    ):
        return text
    return SAFE_NEXT


class PageRoute(APIRoute):
    """A route whose errors are pages, and whose visitors without a session are asked to sign in."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except SignInNeeded:
                return ask_to_sign_in(request)
            except (Problem, HTTPException, FineryError, RequestValidationError) as error:
                return error_page(request, problem_of(error))
            except Exception as error:
                log.exception("%s %s failed", request.method, request.url.path)
                return error_page(request, problem_of(error))

        return handled


def ask_to_sign_in(request: Request) -> Response:
    """Go to the sign-in page and come back afterwards."""
    if "text/event-stream" in request.headers.get("accept", ""):
        return HTMLResponse("", 401, HEADERS)
    goal = request.url.path + (f"?{request.url.query}" if request.url.query else "") if request.method == "GET" else "/"
    address = f"/sign-in?next={quote(goal, safe='')}"
    if "hx-request" in request.headers:
        return HTMLResponse("", 401, {**HEADERS, "HX-Redirect": address})
    if request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site":
        # a strict cookie is not sent along a link from elsewhere; asked again from here, it is
        return HTMLResponse(
            '<!doctype html><meta http-equiv="refresh" content="0"><title>Finery</title><a '
            f'href="{quote(goal, safe="/?=&")}">Go on</a>',
            200,
            HEADERS,
        )
    return RedirectResponse(address, 303, HEADERS)


def error_page(request: Request, problem: Problem) -> Response:
    """An error in words, as a page or, for HTMX, as a part of one."""
    swapped = "hx-request" in request.headers
    template = "parts/error.html.jinja" if swapped else "error.html.jinja"
    title = TITLES.get(problem.status, "Something went wrong")
    response = page(request, template, visitor_of(request), problem.status, problem=problem, title=title)
    response.headers.update(problem.headers)
    if swapped:
        response.headers.update({"HX-Retarget": "#notice", "HX-Reswap": "innerHTML"})
    return response


def new_router() -> APIRouter:
    """A router for pages: outside the API's document."""
    return APIRouter(route_class=PageRoute, include_in_schema=False, default_response_class=HTMLResponse)


router = new_router()
YEAR = 365 * 86_400


@router.get("/")
def home() -> Response:
    """The jobs are the front page."""
    return RedirectResponse("/jobs", 303, HEADERS)


@router.get("/sign-in")
def sign_in_page(request: Request, next: str = "/") -> Response:
    """The form that takes a token; whoever has a session goes on."""
    visitor = visitor_of(request)
    if visitor is not None and visitor.token is not None:
        return RedirectResponse(local_path(next), 303, HEADERS)
    return _form(request, next)


def _form(request: Request, goal: str, mistake: str = "", status: int = 200) -> Response:
    """The form, with a cookie of its own: a session that the browser did not send along this time stays as it is."""
    sessions = sessions_of(request)
    cookie = request.cookies.get(VISIT_COOKIE, "")
    visitor = sessions.read(cookie)
    if visitor is None or visitor.token is not None:
        cookie, visitor = sessions.make(None)
    response = page(
        request, "sign_in.html.jinja", None, status, goal=local_path(goal), mistake=mistake, csrf=visitor.csrf
    )
    set_cookie(request, response, VISIT_COOKIE, cookie)
    return response


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Exchange a token for a session."""
    form = await request.form()
    goal = local_path(str(form.get("next", "/")))
    try:
        await check_form(request, sessions_of(request).read(request.cookies.get(VISIT_COOKIE)))
    except Problem:
        return _form(request, goal, "The page was open for too long, or your browser takes no cookies. Try again.", 403)
    return await run_in_threadpool(_exchange, request, str(form.get("token", "")).strip(), goal)


def _exchange(request: Request, text: str, goal: str) -> Response:
    service = service_of(request)
    try:
        caller = authenticate(service, text, request.client.host if request.client else "")
    except Problem as problem:
        return _form(request, goal, problem.detail, problem.status)
    token_parts = parts(text)
    token = service.store.token_by_prefix(token_parts[0]) if token_parts else None
    identify(caller.token, caller.role, caller.project, request.scope)
    service.store.record("login", "token", caller.token, caller.project)
    response = RedirectResponse(goal, 303, HEADERS)
    set_cookie(request, response, COOKIE, sessions_of(request).make(token)[0])
    return response


@router.post("/sign-out")
def sign_out(request: Request, visitor: Sent) -> Response:
    """End the session, on the server too."""
    sessions_of(request).end(visitor)
    service_of(request).store.record("logout", "token", visitor.token.id, visitor.home)
    response = RedirectResponse("/sign-in", 303, {**HEADERS, "Clear-Site-Data": '"cache"'})
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


@router.post("/theme")
def choose_theme(request: Request, theme: Annotated[str, Form()], back: Annotated[str, Form()] = "/") -> Response:
    """Keep the chosen theme in a cookie; it says nothing about the visitor, so anybody may set it."""
    response = RedirectResponse(local_path(back), 303, HEADERS)
    response.set_cookie(THEME_COOKIE, theme if theme in THEMES else "auto", max_age=YEAR, samesite="lax", path="/")
    return response
