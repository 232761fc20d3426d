"""Puts the pages on the application: `mount(app)` after `app.state.service` is there."""

from __future__ import annotations

from fastapi import FastAPI

from service.web.pages import account, compare, hosts, job, job_actions, jobs, leaderboard, models, studies, submit
from service.web.rendering import STATIC, Assets
from service.web.sessions import Sessions

PAGES = (account, jobs, job, job_actions, compare, leaderboard, submit, models, studies, hosts)


def mount(app: FastAPI) -> None:
    """Add every page and the static files. The API must have set `app.state.service`."""
    service = app.state.service
    app.state.web_sessions = Sessions(service.store, service.settings.home)
    for module in PAGES:
        app.include_router(module.router)
    app.mount("/static", Assets(directory=STATIC), name="static")
