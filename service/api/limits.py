"""Limits on what a client may send: requests a second for each token, and bytes of each body."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BUCKETS = 10_000
NO_TEXT = "is not UTF-8 text"
MOST_VALUES = 20_000
"""Of a JSON body."""
MOST_DEPTH = 64
MOST_DIGITS = 1_000
"""Of a number in JSON."""
JSON = re.compile(rb"\s*(application/json|[^;]*\+json)\s*(;|$)", re.IGNORECASE)
FORM = re.compile(rb"\s*multipart/", re.IGNORECASE)
CHARSET = re.compile(rb"charset\s*=\s*\"?([^\";\s]*)", re.IGNORECASE)
CHARSETS = (b"utf-8", b"utf8", b"us-ascii", b"ascii", b"latin-1", b"iso-8859-1")
"""Those that a form may name: others decode to halves of characters, or not at all."""
STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
BRACKET = re.compile(rb"[\[\]{}]")
DIGITS = re.compile(rb"[0-9]{%d}" % (MOST_DIGITS + 1))
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass
class _Bucket:
    tokens: float
    at: float


class RateLimiter:
    """A token bucket for each key: `burst` requests at once, `rate` a second sustained."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.burst = burst
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._lock = threading.Lock()

    def take(self, key: str) -> float:
        """0 when the request may pass, else the seconds until one may."""
        now = self._clock()
        with self._lock:
            bucket = self._buckets.get(key)
            if bucket is None:
                self._make_room(now)
                bucket = self._buckets[key] = _Bucket(float(self.burst), now)
            bucket.tokens = min(float(self.burst), bucket.tokens + max(0.0, now - bucket.at) * self.rate)
            bucket.at = now
            if bucket.tokens >= 1:
                bucket.tokens -= 1
                return 0.0
            return (1 - bucket.tokens) / self.rate

    def _make_room(self, now: float) -> None:
        """Forget keys whose buckets are full again: they are as good as new."""
        if len(self._buckets) < MOST_BUCKETS:
            return
        full = self.burst / self.rate
        self._buckets = {key: each for key, each in self._buckets.items() if now - each.at < full}
        while len(self._buckets) >= MOST_BUCKETS:
            self._buckets.pop(next(iter(self._buckets)))


class BodyTooLarge(HTTPException):
    """The body is longer than its route takes."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The body is larger than {limit} bytes, which is all that this address takes.")


class BadJson(HTTPException):
    """The body is no JSON that a parser should see."""

    def __init__(self, problem: str) -> None:
        super().__init__(400 if problem == NO_TEXT else 422, f"The body {problem}.")


def unfit_json(body: bytes) -> str | None:
    """Why a body is not even parsed as JSON: counted in its bytes, because parsing millions of values costs what
    others wait for."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return NO_TEXT
    if SURROGATE.search(body):
        try:
            json.dumps(json.loads(body), ensure_ascii=False).encode() if _unfit_structure(body) is None else None
        except UnicodeEncodeError:
            return "holds half of a character"
        except ValueError:
            return None  # the route tells it
    return _unfit_structure(body)


def _unfit_structure(body: bytes) -> str | None:
    plain = STRING.sub(b"", body)
    if plain.count(b",") + plain.count(b"[") + plain.count(b"{") > MOST_VALUES:
        return f"holds more than {MOST_VALUES} values"
    depth = 0
    for bracket in BRACKET.finditer(plain):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > MOST_DEPTH:
            return f"is nested more than {MOST_DEPTH} levels deep"
    if DIGITS.search(plain):
        return f"holds a number of more than {MOST_DIGITS} digits"
    return None


class BodyLimit:
    """Middleware that answers 413 to a body above the limit of its path, before or while it arrives, and 400 to
    JSON beyond all use."""

    def __init__(
        self, app: ASGIApp, limit_of: Callable[[Scope], int], refuse: Callable[[Scope, HTTPException], ASGIApp]
    ) -> None:
        self.app = app
        self.limit_of = limit_of
        self.refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.limit_of(scope)
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > limit):
            await self.refuse(scope, BodyTooLarge(limit))(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise BodyTooLarge(limit)
            return message

        kind = _header(scope, b"content-type")
        if FORM.match(kind) and (charset := CHARSET.search(kind)) is not None and charset[1].lower() not in CHARSETS:
            await self.refuse(scope, HTTPException(415, "The form's charset is not offered; send utf-8."))(
                scope, receive, send
            )
            return
        if not JSON.match(kind):
            await self.app(scope, counted, send)
            return
        parts, more = [], True
        try:
            while more:
                message = await counted()
                if message["type"] != "http.request":
                    return  # the client is gone
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
        except BodyTooLarge as error:
            await self.refuse(scope, error)(scope, receive, send)
            return
        body = b"".join(parts)
        problem = unfit_json(body)
        if problem is not None:
            await self.refuse(scope, BadJson(problem))(scope, receive, send)
            return
        sent = False

        async def again() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, send)


def _header(scope: Scope, name: bytes) -> bytes:
    value: bytes = dict(scope["headers"]).get(name, b"")
    return value
