"""The audit trail for admins, and the middleware that lets the store know whose request it serves."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.context import Admin, ServiceOf
from service.api.documents import Page, moment, page
from service.api.problems import Problem, described
from service.api.routes.jobs import LIMIT, clean
from service.store.audit import Action, Actor, AuditEntry, acting

router = APIRouter(tags=["administration"], responses=described())


class Acting:
    """Middleware that gives each request an actor of its own, nobody until its token is known."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with acting(Actor("", scope=scope)):
            await self.app(scope, receive, send)


class AuditDocument(BaseModel):
    """One thing that somebody did."""

    id: str
    time: datetime
    action: str
    actor: str
    """Id of the token, `finery` for the server itself, `console` for a command on its machine, empty where nobody was known."""
    role: str
    actor_project: str
    address: str
    request: str
    """The request's id, as its log line has it."""
    kind: str
    thing: str
    project: str | None
    details: dict[str, Any]

    @classmethod
    def of(cls, entry: AuditEntry) -> AuditDocument:
        return cls(**{**vars(entry), "time": moment(entry.time), "details": dict(entry.details)})


@router.get("/audit")
def trail(
    service: ServiceOf, caller: Admin,
    action: Annotated[Action | None, Query(description="What was done.")] = None,
    actor: Annotated[str | None, Query(max_length=64, description="Id of a token, `finery` or `console`.")] = None,
    project: Annotated[str | None, Query(max_length=64, description="That the thing belongs to.")] = None,
    thing: Annotated[str | None, Query(max_length=200, description="Id or name of what was acted on.")] = None,
    since: Annotated[datetime | None, Query(description="Not before, with a time zone.")] = None,
    until: Annotated[datetime | None, Query(description="Before, with a time zone.")] = None,
    after: Annotated[str | None, Query(max_length=64)] = None, limit: int = LIMIT,
) -> Page[AuditDocument]:  # fmt: skip
    """Who did what, newest first: jobs, files, models, secrets, tokens, projects, hosts and sign-ins."""
    for name, given in (("since", since), ("until", until)):
        if given is not None and given.tzinfo is None:
            raise Problem(422, f"{name}: needs a time zone, such as 2026-11-21T22:00:00Z", "invalid_request")
    found = service.store.audit(
        action=action, actor=clean(actor), project=clean(project) or caller.scope, thing=clean(thing), after=clean(after), limit=limit,
        since=since.timestamp() if since else None, until=until.timestamp() if until else None,
    )  # fmt: skip
    return page([AuditDocument.of(entry) for entry in found], limit, found[-1].id if found else None)
