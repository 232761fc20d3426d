"""What every route works with: the store, the settings, and who is asking."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, Header, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.api.limits import RateLimiter
from service.api.problems import Problem
from service.checking import Checker, Lane
from service.safety.redaction import Redactor, of_environment
from service.serving.processes import ModelProcesses
from service.settings import Settings
from service.store.audit import identify
from service.store.projects import PROJECT, matches, may, parts
from service.store.store import Store

if TYPE_CHECKING:
    from service.api.health import Measurements

Work = TypeVar("Work", bound=Callable[..., Any])
FAILED_LOGINS = 2.0
"""Wrong tokens a second that one address may send, after a burst of ten times as many."""
bearer = HTTPBearer(auto_error=False, description="A token from `finery token create`, or HOME/admin.token.")


@dataclass
class Lanes:
    """Threads for what takes long, apart from those that answer everything else."""

    checks: Lane
    fetches: Lane = field(default_factory=lambda: Lane("a download to the server", 4))
    """Files from URLs, and those that are examined or hashed as a whole."""
    comparisons: Lane = field(default_factory=lambda: Lane("a comparison of models", 2, waiting=32, each=4))
    """Each is a process that reads what two versions say of every example."""
    readings: Lane = field(default_factory=lambda: Lane("a whole log or curve", 4))
    health: Lane = field(default_factory=lambda: Lane("health", 2, each=256))


@dataclass
class Service:
    """The parts that routes share."""

    settings: Settings
    store: Store
    wake: Callable[[], None]
    limiter: RateLimiter
    failures: RateLimiter
    checker: Checker
    lanes: Lanes
    served: ModelProcesses
    redactor: Redactor = field(default_factory=lambda: Redactor(of_environment()))
    public: RateLimiter = field(default_factory=lambda: RateLimiter(5.0, 100))
    """Of one address without a token, where an answer costs something."""
    stopped: Callable[[], Sequence[str]] = tuple
    """Names of the supervisor's threads that have ended."""
    measurements: Measurements | None = None
    """Set by the application."""
    isolated: bool = True
    """Whether attempts are kept apart from the server, or its operator said that they need not be; set when
    serving begins."""


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


async def service_of(request: Request) -> Service:
    """The parts that routes share."""
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(service_of)]


LOOKED_AT = 200
"""The newest models of a project, among which those are sought whose adapters stand on one base."""


def make_service(settings: Settings, store: Store, wake: Callable[[], None], checker: Checker) -> Service:
    """The shared parts of one application."""
    limiter = RateLimiter(settings.requests_per_second, settings.burst)
    lanes = Lanes(Lane("a check of recipes", settings.check_workers))
    failures = RateLimiter(FAILED_LOGINS, int(FAILED_LOGINS * 10))
    served = ModelProcesses(
        settings,
        siblings=lambda project: store.models(project, limit=LOOKED_AT),
        most_of=lambda project: store.project(project).max_running,
    )
    return Service(settings, store, wake, limiter, failures, checker, lanes, served)


def authenticate(service: Service, text: str | None, address: str = "") -> Caller:
    """Who a token belongs to. Raises Problem 401 or 429."""
    if text is None:
        refuse_busy(service.failures.take(address))
        raise Problem(401, "Send a token: `Authorization: Bearer fin_…`.", "no_token")
    token_parts = parts(text)
    token = service.store.token_by_prefix(token_parts[0]) if token_parts else None
    prefix = token_parts[0] if token_parts else ""
    right = matches(token_parts[1] if token_parts else "", token.sha256 if token else None)
    if not right or token is None or not token.valid(time.time()):
        refuse_busy(service.failures.take(address))
        service.store.login_failed(address, prefix)
        raise Problem(401, "The token is unknown, expired or revoked.", "bad_token")
    refuse_busy(service.limiter.take(token.id))
    service.store.touch_token(token)
    return Caller(token.id, token.project, token.role, None if token.role == "admin" else token.project)


def still_valid(service: Service, caller: Caller) -> bool:
    """Whether a caller's token opens anything now. What goes on for long asks again and again."""
    token = service.store.token_by_id(caller.token)
    return token is not None and token.valid(time.time())


def refuse_busy(seconds: float) -> None:
    """Raise Problem 429 where a limiter says how long to wait."""
    if seconds > 0:
        raise Problem(
            429,
            f"Too many requests; try again in {seconds:.1f} s.",
            "rate_limited",
            headers={"Retry-After": str(max(1, round(seconds)))},
        )


def caller(
    request: Request,
    service: ServiceOf,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)] = None,
    acting_for: Annotated[
        str | None, Header(alias="X-Finery-Project", description="Admins: act in this project.")
    ] = None,
) -> Caller:
    """Who sent this request; a page's session may stand in for the header."""
    text = credentials.credentials if credentials is not None else getattr(request.state, "token", None)
    identity = authenticate(service, text, request.client.host if request.client else "")
    request.state.token_id = identity.token
    identify(identity.token, identity.role, identity.project, request.scope)
    if acting_for is None or acting_for == identity.project:
        return identity
    if identity.role != "admin":
        raise Problem(403, "Only an admin's token acts for another project.", "forbidden")
    if PROJECT.fullmatch(acting_for) is None:
        raise Problem(422, f"X-Finery-Project must match {PROJECT.pattern}.", "invalid_request")
    return replace(identity, project=acting_for, scope=acting_for)


def refuse_without_isolation(service: Service, caller: Caller) -> None:
    """Raise Problem 403 for a job that would run with all that the server may do, unless an admin submits it."""
    if not service.isolated and caller.role != "admin":
        raise Problem(
            403,
            "This server cannot isolate jobs from itself, so only admins may submit; its operator can mend that, see "
            "`finery doctor`.",
            "no_isolation",
        )


def apart(lane: str, register: Callable[[Callable[..., object]], object]) -> Callable[[Work], Work]:
    """Register a route whose work is done on the threads of a lane: `@apart("readings",
    router.get("/jobs/{job_id}/logs"))`.

    The function itself stays as it is, for others that call it. It takes `service` and `caller`, or `request` and
    `visitor`.
    """

    def decorate(work: Work) -> Work:
        @functools.wraps(work)
        async def route(**given: Any) -> Any:
            service = given.get("service") or given["request"].app.state.service
            asking = given["caller"].token if "caller" in given else given["visitor"].token.id
            return await getattr(service.lanes, lane).run(asking, work, **given)

        register(route)
        return work

    return decorate


def _at_least(role: str) -> Callable[..., Caller]:
    def check(identity: Annotated[Caller, Depends(caller)]) -> Caller:
        if not may(identity.role, role):
            raise Problem(403, f"This needs the role {role}; the token's role is {identity.role}.", "forbidden")
        return identity

    return check


Viewer = Annotated[Caller, Depends(_at_least("viewer"))]
Submitter = Annotated[Caller, Depends(_at_least("submitter"))]
Admin = Annotated[Caller, Depends(_at_least("admin"))]
