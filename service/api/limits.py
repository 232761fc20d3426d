"""Limits on what a client may send: requests a second for each token, and bytes of each body."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BUCKETS = 10_000


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


class BodyLimit:
    """Middleware that answers 413 to a body above the limit of its path, before or while it arrives."""

    def __init__(self, app: ASGIApp, limit_of: Callable[[Scope], int], refuse: Callable[[Scope, BodyTooLarge], ASGIApp]) -> None:
        self.app = app
        self.limit_of = limit_of
        self.refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.limit_of(scope)
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > limit:
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

        await self.app(scope, counted, send)
