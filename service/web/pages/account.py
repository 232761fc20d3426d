"""Signing in with a token, signing out, and the choice of light or dark."""

from __future__ import annotations

from typing import Annotated

from fastapi import Form, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from starlette.responses import Response

from service.api.context import authenticate
from service.api.problems import Problem
from service.store.audit import identify
from service.tokens import parts
from service.web.rendering import HEADERS, THEME_COOKIE, THEMES, page
from service.web.sessions import COOKIE, VISIT_COOKIE
from service.web.visiting import (
    Sent,
    check_form,
    local_path,
    new_router,
    service_of,
    sessions_of,
    set_cookie,
    visitor_of,
)

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
    response = page(request, "sign_in.html.jinja", None, status, goal=local_path(goal), mistake=mistake, csrf=visitor.csrf)
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
    found = parts(text)
    token = service.store.token_by_prefix(found[0]) if found else None
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
