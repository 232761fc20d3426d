"""Server-sent events for open pages: waits for changes of the store without holding a thread."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from fastapi import Request
from sse_starlette import EventSourceResponse, ServerSentEvent

from service.store.changes import Changes
from service.web.rendering import HEADERS
from service.web.visiting import visitor_of

SHORTEST_PAUSE = 0.7
"""Seconds between two messages of parts: faster is not read."""
RECHECK = 30.0
"""Seconds after which a stream asks whether its visitor may still look."""


@contextlib.contextmanager
def woken_by(changes: Changes, topic: str) -> Iterator[asyncio.Event]:
    """An event that is set whenever the topic changes, from any thread."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(event.set)

    end = changes.subscribe(topic, wake)
    try:
        yield event
    finally:
        end()


async def turns(request: Request, changes: Changes, topic: str, idle: float) -> AsyncIterator[None]:
    """One turn at once, then one for every change, at least every `idle` seconds; ends when the visitor is gone or signed out."""
    loop = asyncio.get_running_loop()
    with woken_by(changes, topic) as changed:
        checked = loop.time()
        while not await request.is_disconnected():
            changed.clear()
            yield
            await asyncio.sleep(SHORTEST_PAUSE)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), idle)
            if loop.time() - checked > RECHECK:
                checked = loop.time()
                visitor = await asyncio.to_thread(visitor_of, request)
                if visitor is None or visitor.token is None:
                    return


class Parts:
    """What a page shows already, so that only what differs is sent."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def fresh(self, parts: Mapping[str, str]) -> dict[str, str]:
        """The parts that differ from what was sent last."""
        found = {}
        for name, html in parts.items():
            digest = hashlib.sha256(html.encode("utf-8", "replace")).hexdigest()
            if self._seen.get(name) != digest:
                self._seen[name] = digest
                found[name] = html
        return found


def message(event: str, data: Any) -> ServerSentEvent:
    """One message with JSON in it."""
    return ServerSentEvent(data=json.dumps(data, ensure_ascii=True, default=str), event=event)


def respond(messages: AsyncIterator[ServerSentEvent]) -> EventSourceResponse:
    """The stream, with a sign of life every 15 seconds."""
    return EventSourceResponse(messages, headers={**HEADERS, "X-Accel-Buffering": "no"}, ping=15)
