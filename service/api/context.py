"""What every route works with: the store, the settings, and who is asking."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Header, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.api.limits import RateLimiter
from service.api.problems import Problem
from service.safety.secrets import Redactor, of_environment
from service.settings import Settings
from service.store.audit import identify
from service.store.store import Store
from service.tokens import PROJECT, matches, may, parts

if TYPE_CHECKING:
    from service.api.health import Measurements

FAILED_LOGINS = 2.0
"""Wrong tokens a second that one address may send, after a burst of ten times as many."""
bearer = HTTPBearer(auto_error=False, description="A token from `finery token create`, or HOME/admin.token.")


@dataclass
class Service:
    """The parts that routes share."""

    settings: Settings
    store: Store
    wake: Callable[[], None]
    limiter: RateLimiter
    failures: RateLimiter
    redactor: Redactor = field(default_factory=lambda: Redactor(of_environment()))
    measurements: Measurements | None = None
    """Set by the application."""


@dataclass(frozen=True)
class Caller:
    """Who is asking, and what belongs to them."""

    token: str
    """Id of the token."""
    project: str
    """Where new things go, and where names are looked up."""
    role: str
    scope: str | None
    """The project whose things can be seen; None for an admin, who sees all."""


def service_of(request: Request) -> Service:
    """The parts that routes share."""
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(service_of)]


def make_service(settings: Settings, store: Store, wake: Callable[[], None]) -> Service:
    """The shared parts of one application."""
    limiter = RateLimiter(settings.requests_per_second, settings.burst)
    return Service(settings, store, wake, limiter, RateLimiter(FAILED_LOGINS, int(FAILED_LOGINS * 10)))


def authenticate(service: Service, text: str | None, address: str = "") -> Caller:
    """Who a token belongs to. Raises Problem 401 or 429."""
    if text is None:
        _refuse_busy(service.failures.take(address))
        raise Problem(401, "Send a token: `Authorization: Bearer fin_…`.", "no_token")
    found = parts(text)
    token = service.store.token_by_prefix(found[0]) if found else None
    prefix = found[0] if found else ""
    right = matches(found[1] if found else "", token.sha256 if token else None)
    if not right or token is None or not token.valid(time.time()):
        _refuse_busy(service.failures.take(address))
        service.store.login_failed(address, prefix)
        raise Problem(401, "The token is unknown, expired or revoked.", "bad_token")
    _refuse_busy(service.limiter.take(token.id))
    service.store.touch_token(token)
    return Caller(token.id, token.project, token.role, None if token.role == "admin" else token.project)


def _refuse_busy(seconds: float) -> None:
    if seconds > 0:
        raise Problem(429, f"Too many requests; try again in {seconds:.1f} s.", "rate_limited", headers={"Retry-After": str(max(1, round(seconds)))})


def caller(
    request: Request,
    service: ServiceOf,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)] = None,
    acting_for: Annotated[str | None, Header(alias="X-Finery-Project", description="Admins: act in this project.")] = None,
) -> Caller:
    """Who sent this request; a page's session may stand in for the header."""
    text = credentials.credentials if credentials is not None else getattr(request.state, "token", None)
    found = authenticate(service, text, request.client.host if request.client else "")
    identify(found.token, found.role, found.project, request.scope)
    if acting_for is None or acting_for == found.project:
        return found
    if found.role != "admin":
        raise Problem(403, "Only an admin's token acts for another project.", "forbidden")
    if PROJECT.fullmatch(acting_for) is None:
        raise Problem(422, f"X-Finery-Project must match {PROJECT.pattern}.", "invalid_request")
    return replace(found, project=acting_for, scope=acting_for)


def _at_least(role: str) -> Callable[..., Caller]:
    def check(found: Annotated[Caller, Depends(caller)]) -> Caller:
        if not may(found.role, role):
            raise Problem(403, f"This needs the role {role}; the token's role is {found.role}.", "forbidden")
        return found

    return check


Viewer = Annotated[Caller, Depends(_at_least("viewer"))]
Submitter = Annotated[Caller, Depends(_at_least("submitter"))]
Admin = Annotated[Caller, Depends(_at_least("admin"))]
