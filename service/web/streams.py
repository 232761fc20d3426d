"""Server-sent events for open pages: waits for changes of the store without holding a thread."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, TypeVar

from fastapi import Request
from sse_starlette import EventSourceResponse, ServerSentEvent

from service.store.changes import ACCESS, Changes
from service.web.access import visitor_of
from service.web.rendering import HEADERS

T = TypeVar("T")
SHORTEST_PAUSE = 0.7
"""Seconds between two messages of parts: faster is not read."""
SIGNED_OUT = "signed-out"
"""The last message of a stream whose visitor signed out, or whose token opens nothing any more."""


@contextlib.contextmanager
def woken_by(changes: Changes, *topics: str) -> Iterator[asyncio.Event]:
    """An event that is set whenever one of the topics changes, from any thread."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(event.set)

    with contextlib.ExitStack() as ends:
        for topic in topics:
            ends.callback(changes.subscribe(topic, wake))
        yield event


async def looks(
    request: Request, changes: Changes, topic: str, idle: float, look: Callable[[], T]
) -> AsyncIterator[T | None]:
    """What `look` sees at once, then after every change, at least every `idle` seconds, while the visitor is there.

    Whether the visitor may look is asked after each: what was seen happened while it was so. None is the last, for one
    who may not.
    """
    with woken_by(changes, topic, ACCESS) as changed:
        while not await request.is_disconnected():
            changed.clear()
            seen = await asyncio.to_thread(look)
            visitor = await asyncio.to_thread(visitor_of, request)
            if visitor is None or visitor.token is None:
                yield None
                return
            yield seen
            await asyncio.sleep(SHORTEST_PAUSE)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), idle)


class PageParts:
    """What a page shows already, so that only what differs is sent."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def fresh(self, parts: Mapping[str, str]) -> dict[str, str]:
        """The parts that differ from what was sent last."""
        changed = {}
        for name, html in parts.items():
            digest = hashlib.sha256(html.encode("utf-8", "replace")).hexdigest()
            if self._seen.get(name) != digest:
                self._seen[name] = digest
                changed[name] = html
        return changed


def message(event: str, data: Any) -> ServerSentEvent:
    """One message with JSON in it."""
    return ServerSentEvent(data=json.dumps(data, ensure_ascii=True, default=str), event=event)


def respond(messages: AsyncIterator[ServerSentEvent]) -> EventSourceResponse:
    """The stream, with a sign of life every 15 seconds."""
    return EventSourceResponse(messages, headers={**HEADERS, "X-Accel-Buffering": "no"}, ping=15)
