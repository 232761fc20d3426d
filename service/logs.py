"""The server's log: lines with time, level, logger and request id, as text or JSON, and one line for each request.

What clients send never breaks a line: control characters are written as escapes, and the lines of a trace are
indented. An access line names the route's template, not the path, and the id of the token, never the token.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Request ids that are taken from a client."""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
OFTEN = 20
"""Lines a minute of the HTTP library's complaints about clients."""
MOST_CHARACTERS = 20_000
request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that this task or thread works for."""
access = logging.getLogger("finery.access")


def escaped(text: str) -> str:
    """The text without characters that move a cursor, end a line or turn its direction."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)


class TextLines(logging.Formatter):
    """`2026-11-22T10:00:00.123Z INFO service.supervisor [id] message`"""

    def format(self, record: logging.LogRecord) -> str:
        identifier = getattr(record, "request_id", "") or request_id.get()
        message = escaped(record.getMessage())[:MOST_CHARACTERS]
        prefix = f"[{identifier}] " if identifier else ""
        line = f"{_moment(record.created)} {record.levelname} {record.name} {prefix}{message}"
        if record.exc_info and record.exc_info[0] is not None:
            trace = self.formatException(record.exc_info)[-MOST_CHARACTERS:]
            line += "".join(f"\n    {escaped(each)}" for each in trace.splitlines())
        return line


class JsonLines(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        made: dict[str, Any] = {
            "time": _moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        identifier = getattr(record, "request_id", "") or request_id.get()
        if identifier:
            made["request_id"] = identifier
        made["message"] = record.getMessage()[:MOST_CHARACTERS]
        made |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:
            made["trace"] = self.formatException(record.exc_info)[-MOST_CHARACTERS:]
        return json.dumps(made, default=str)  # ASCII: every control character is an escape


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Seldom(logging.Filter):
    """Lets so many records a minute pass: whoever sends broken requests does not fill the disk with their
    descriptions."""

    def __init__(self, most: int = OFTEN, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._clock = clock
        self._begun = clock()
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return True
        if self._clock() - self._begun >= 60:
            self._begun, self._count = self._clock(), 0
        self._count += 1
        return self._count <= self._most


def configure(form: str = "text", level: str = "info", stream: IO[str] | None = None) -> None:
    """Write the log of this process to `stream`, by default the standard error output."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    for each in list(root.handlers):
        root.removeHandler(each)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # what libraries say below that is theirs
    for name in ("service", "finery"):
        logging.getLogger(name).setLevel(level.upper())
    logging.getLogger("uvicorn.error").addFilter(Seldom())


class Requests:
    """Middleware: an id for each request, in its answer and in every line of the log that it causes, and one line
    at its end."""

    def __init__(self, app: ASGIApp, route_of: Callable[[Scope], str], method_of: Callable[[Scope], str]) -> None:
        self.app = app
        self.route_of = route_of
        self.method_of = method_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((value.decode("latin-1") for name, value in scope["headers"] if name == HEADER), "")
        identifier = given if SANE.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = identifier
        mark = request_id.set(identifier)
        begun = time.perf_counter()
        status = 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [each for each in message.get("headers", ()) if each[0].lower() != HEADER]
                message["headers"] = [*headers, (HEADER, identifier.encode())]
            await send(message)

        try:
            await self.app(scope, receive, sent)
        finally:
            took = round((time.perf_counter() - begun) * 1000, 1)
            fields = {
                "method": self.method_of(scope),
                "route": self.route_of(scope),
                "status": status,
                "milliseconds": took,
            }
            token = scope["state"].get("token_id")
            text = "%s %s %s in %.1f ms%s"
            access.info(
                text,
                *fields.values(),
                f" by {token}" if token else "",
                extra={"fields": {**fields, **({"token": token} if token else {})}},
            )
            request_id.reset(mark)
