"""Errors of the API as problem+json (RFC 9457), or in OpenAI's envelope below /v1.

One table says which status each error of the service is answered with. OpenAI's envelope is
`{"error": {"message", "type", "param", "code"}}`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines.core.errors import CommandError, FineryError, RecipeError
from service.checking import Crowded
from service.jobs.states import IllegalTransition
from service.safety.fetching import FetchRefused
from service.store.errors import Conflict, DiskQuotaExceeded, NoSpace, NotFound, QuotaExceeded, Unavailable
from service.uploads import TooLarge, WrongOffset

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CODES = {"no_token": "invalid_api_key", "bad_token": "invalid_api_key", "rate_limited": "rate_limit_exceeded"}


def status_of(problem: Problem) -> int:
    """OpenAI answers 400 to content that is wrong."""
    return 400 if problem.status == 422 else problem.status


def envelope(problem: Problem) -> dict[str, Any]:
    """The body of an answer. Every mistake stands in the message, which is all that clients show, and once."""
    lines = []
    for each in problem.errors:
        place = f"line {each.line}: " if each.line is not None and not each.key else ""
        lines.append(f"{place}{each.key}: {each.message}" if each.key else f"{place}{each.message}")
    kind = "server_error" if problem.status >= 500 else TYPES.get(problem.status, "invalid_request_error")
    param = problem.param or (problem.errors[0].key if problem.errors and problem.errors[0].key else None)
    code = CODES.get(problem.code, problem.code) or None
    message = "\n".join([problem.detail, *(line for line in lines if line not in problem.detail)])
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
TITLES = {
    400: "The request cannot be understood", 401: "A valid token is needed", 403: "The token may not do this",
    404: "Not found", 405: "Method not allowed", 421: "The request is for another host", 507: "No room on the disk",
    409: "The request contradicts what is there", 411: "Content-Length is needed", 412: "Precondition failed",
    413: "Too large", 415: "The media type is not supported", 416: "The range is not there",
    422: "The content has mistakes", 429: "Too many requests", 500: "Something went wrong in the service",
    503: "The service is not ready",
}  # fmt: skip
STATUS: tuple[tuple[type[Exception], int], ...] = (
    (NotFound, 404),
    (Conflict, 409),
    (IllegalTransition, 409),
    (WrongOffset, 409),
    (DiskQuotaExceeded, 507),
    (QuotaExceeded, 429),
    (TooLarge, 413),
    (NoSpace, 507),
    (Unavailable, 503),
    (RecipeError, 422),
    (CommandError, 422),
    (FetchRefused, 422),
)
"""Errors of the service -> the status they are answered with."""


class MistakeDocument(BaseModel):
    """One thing wrong with the content of a request."""

    line: int | None = Field(None, description="Line of the recipe or of the file, from 1.")
    key: str = Field("", description="Where: a dotted path such as stages.mrpc.tuner.r; empty for the whole.")
    message: str = Field(description="What was given, what is allowed, the nearest known name.")


class ProblemDocument(BaseModel):
    """An error (RFC 9457)."""

    type: str = Field("about:blank", description="A URI that names the kind of problem.")
    title: str = Field(description="The kind of problem in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field("", description="What happened, in a sentence.")
    code: str = Field("", description="The reason as a word, such as bad_recipe.")
    errors: list[MistakeDocument] = Field(
        default_factory=list, description="Every mistake, where there can be several."
    )
    request_id: str = Field("", description="As in the header X-Request-ID, and in the server's log.")


class Problem(Exception):
    """An error that a route answers with."""

    def __init__(
        self,
        status: int,
        detail: str,
        code: str = "",
        errors: Sequence[MistakeDocument] = (),
        headers: Mapping[str, str] | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code
        self.errors = list(errors)
        self.headers = dict(headers or {})
        self.param = param
        """The parameter that is wrong, which OpenAI's errors name."""
        self.members: dict[str, Any] = {}
        """What the document holds beside the usual (RFC 9457, section 3.2)."""

    def document(self) -> ProblemDocument:
        """The body of the answer."""
        title = TITLES.get(self.status, "Error")
        return ProblemDocument(title=title, status=self.status, detail=self.detail, code=self.code, errors=self.errors)


def problem_of(error: Exception) -> Problem:
    """What an error of the service is to a client. Unknown ones are a 500 that tells nothing."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RecipeError):
        errors = [MistakeDocument(line=each.line, key=each.key, message=each.message) for each in error.mistakes]
        count = f"{len(errors)} mistakes" if len(errors) != 1 else "a mistake"
        return Problem(422, f"The recipe has {count}.", "bad_recipe", errors)
    if isinstance(error, RequestValidationError):
        return _of_validation(error)
    if isinstance(error, HTTPException):
        return Problem(error.status_code, str(error.detail), headers=error.headers)
    for kind, status in STATUS:
        if isinstance(error, kind):
            headers = {"Retry-After": "5"} if status == 503 else {"Retry-After": "30"} if status == 429 else {}
            if isinstance(error, WrongOffset):
                headers = {"Upload-Offset": str(error.expected)}
            return Problem(status, str(error), getattr(error, "reason", ""), headers=headers)
    if isinstance(error, Crowded):
        return Problem(error.status, str(error), "crowded", headers={"Retry-After": "5"})
    if isinstance(error, FineryError):
        return Problem(400, str(error), error.reason)
    return Problem(500, "The error was logged; try again, and tell an admin if it stays.", "internal")


def _of_validation(error: RequestValidationError) -> Problem:
    errors = [
        MistakeDocument(key=".".join(place), message=message[:500])
        for place, message in _mistakes(error.errors(), error.body)
    ]
    return Problem(
        422,
        "; ".join(f"{each.key}: {each.message}" if each.key else each.message for each in errors)[:1000],
        "invalid_request",
        errors,
    )


Place = tuple[str, ...]
KINDS = "input should be "


def _mistakes(errors: Sequence[Mapping[str, Any]], body: Any) -> list[tuple[Place, str]]:
    """(where, in the names of the body; what), once each. Where a value may be of several kinds, pydantic names every
    kind that it is not: what is told is the mistake of the kind that it is, else of the one that fits it furthest."""
    found: dict[Place, dict[str, list[tuple[Place, str]]]] = {}
    others: set[tuple[Place, str]] = set()
    for each in errors:
        place, union, kind = _placed(each, body)
        found.setdefault(union, {}).setdefault(kind, []).append((place, _sentence(each)))
        if str(each["type"]).endswith(("_type", "_parsing")):
            others.add((union, kind))
    told: list[tuple[Place, str]] = []
    for union, kinds in found.items():
        given = {kind: mistakes for kind, mistakes in kinds.items() if (union, kind) not in others} or kinds
        furthest = max(len(place) for mistakes in given.values() for place, _ in mistakes)
        fit = [mistakes for mistakes in given.values() if any(len(place) == furthest for place, _ in mistakes)]
        alike = len({place for mistakes in fit for place, _ in mistakes}) == 1
        places: dict[Place, list[str]] = {}
        for place, message in (each for mistakes in (fit if alike else [min(fit, key=len)]) for each in mistakes):
            places.setdefault(place, []).append(message)
        told += [(place, _either(messages)) for place, messages in places.items()]
    return told


def _placed(error: Mapping[str, Any], body: Any) -> tuple[Place, Place, str]:
    """(where a mistake is, where the value lies that may be of several kinds, which of them it was held to be). A
    mistake of any other value stands for itself."""
    first, *rest = error["loc"]
    place: Place = ()
    if first != "body":
        return tuple(map(str, rest)), ("", *map(str, rest)), ""
    union, kind = None, ""
    for number, part in enumerate(rest, start=1):
        if (isinstance(part, int) and isinstance(body, list) and part < len(body)) or (
            isinstance(body, Mapping) and part in body
        ):
            body = body[part]
        elif not (error["type"] == "missing" and number == len(rest)):
            union, kind = (place, str(part)) if union is None else (union, kind)
            continue
        place = (*place, str(part))
    return place, ("", *place) if union is None else union, kind


def _sentence(error: Mapping[str, Any]) -> str:
    message, place = str(error["msg"]), error["loc"]
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error.get('ctx', {}).get('error', message)} at character {place[-1]}"
    message = f"{message[:1].lower()}{message[1:]}".replace(" after validation", "")
    if place != ("body",):
        return message
    return "the body is missing" if error["type"] == "missing" else f"the body {message.removeprefix('input ')}"


def _either(messages: Sequence[str]) -> str:
    """One sentence for what a value could be instead."""
    kinds = list(dict.fromkeys(messages))
    if all(each.startswith(KINDS) for each in kinds):
        return KINDS + " or ".join(each.removeprefix(KINDS) for each in kinds)
    return ", or ".join(kinds)


def respond(request: Request, problem: Problem) -> Response:
    """The answer in the words of the surface that was asked."""
    headers = dict(problem.headers)
    if problem.status == 401:
        headers.setdefault("WWW-Authenticate", "Bearer")
    if request.url.path.startswith("/v1/"):
        return _Json(envelope(problem), status_of(problem), headers)
    document = problem.document().model_copy(
        update={"request_id": request.scope.get("state", {}).get("request_id", "")}
    )
    return _Json(document.model_dump() | problem.members, problem.status, headers, media_type=MEDIA_TYPE)


class _Json(JSONResponse):
    """JSON of whatever a client sent: halves of characters become question marks."""

    def render(self, content: object) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
            "utf-8", "replace"
        )


def install(app: FastAPI) -> None:
    """Answer every error of the application this way."""
    kinds: list[type[Exception]] = [Problem, RequestValidationError, HTTPException, FineryError, FetchRefused]
    for kind in kinds:
        app.add_exception_handler(kind, _answer)
    app.add_middleware(UnforeseenErrors)


async def _answer(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    if problem.status >= 500 and not isinstance(error, DiskQuotaExceeded):  # the project's own matter
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    problem.detail = request.app.state.service.redactor.text(problem.detail)
    return respond(request, problem)


class UnforeseenErrors:
    """Middleware that answers what no route foresaw, inside of all that count, name and log the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, sent)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            await (await _answer(Request(scope), error))(scope, receive, send)


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route: these errors, beside those that any route may answer with."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    return {
        status: {"description": TITLES[status], "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({400, 401, 403, 413, 422, 429, *statuses})
    }
