"""Server-sent events: a job's events and its console log, each resumable from the last id that a client has seen.

A stream asks before every piece whether its caller's token is still valid, at once when a token was revoked and every
few seconds besides, and ends with a last event that says so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from sse_starlette import EventSourceResponse, ServerSentEvent

from service.api.context import Caller, Service, still_valid
from service.api.documents import plain_event
from service.executors.records import read_console
from service.jobs.job import Event, Job
from service.store.changes import ACCESS, job_topic
from service.store.errors import NotFound

PING_SECONDS = 15
LOOK_SECONDS = 5.0
"""A stream looks at the database this often even when nobody told it to."""
SLICE_SECONDS = 0.5
"""How soon a stream that waits notices that the server stops."""
GRACE_SECONDS = 2.0
LOG_SECONDS = 0.5
LOG_PIECE = 1 << 16
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
PAGE = 500
REFUSED = json.dumps({"reason": "bad_token", "detail": "The token is expired or was revoked."})
"""What the last event says of a stream whose token opens nothing any more."""
GONE = json.dumps({"reason": "not_found", "detail": "The job was deleted."})


def stream_events(request: Request, service: Service, caller: Caller, job: Job, after: int) -> EventSourceResponse:
    """The events of a job after an id, until it has ended and all were sent."""

    ending = anyio.Event()

    async def events() -> AsyncIterator[ServerSentEvent]:
        last = after
        async with _woken(service, job_topic(job.id), ending) as wait:
            while not ending.is_set() and not await request.is_disconnected():
                try:
                    batch, over = await run_in_threadpool(_events, service, caller, job.id, last)
                except NotFound:
                    batch = None
                # asked after reading: what was read happened while the token was valid
                if not await run_in_threadpool(still_valid, service, caller):
                    yield ServerSentEvent(REFUSED, event="end", id=str(last))
                    return
                if batch is None:
                    yield ServerSentEvent(GONE, event="end", id=str(last))
                    return
                for event in batch:
                    plain = plain_event(event, service.redactor)
                    yield ServerSentEvent(json.dumps(plain, ensure_ascii=False), event=event.event, id=str(event.id))
                    last = event.id
                if batch:
                    continue
                if over:
                    yield ServerSentEvent("{}", event="end", id=str(last))
                    return
                await wait()

    return _answer(events(), ending)


def _answer(events: AsyncIterator[ServerSentEvent], ending: anyio.Event) -> EventSourceResponse:
    """The stream; when the server stops, `ending` is set and the stream has a moment to end as a whole answer does."""
    return EventSourceResponse(
        events, headers=HEADERS, ping=PING_SECONDS, shutdown_event=ending, shutdown_grace_period=GRACE_SECONDS
    )


def _events(service: Service, caller: Caller, job_id: str, after: int) -> tuple[list[Event], bool]:
    """What came after an id, and whether nothing more will come. The job is read first: its last event was then
    written."""
    over = service.store.job(job_id, caller.scope).over
    return service.store.events_after(job_id, after, limit=PAGE, project=caller.scope), over


class _woken:
    """Wakes a coroutine at each change of a topic."""

    def __init__(self, service: Service, topic: str, ending: anyio.Event) -> None:
        self._ending = ending
        self._service = service
        self._topic = topic
        self._event = asyncio.Event()
        self._end: Callable[[], object] = lambda: None

    async def __aenter__(self) -> Callable[[], asyncio.Future[None]]:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._event.set)

        ends = [self._service.store.changes.subscribe(topic, wake) for topic in (self._topic, ACCESS)]
        self._end = lambda: [end() for end in ends] and None
        return lambda: asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        """Until the topic changes, the server stops, or it is time to look all the same."""
        for _ in range(int(LOOK_SECONDS / SLICE_SECONDS)):
            try:
                await asyncio.wait_for(self._event.wait(), SLICE_SECONDS)
            except TimeoutError:
                if not self._ending.is_set():
                    continue
            break
        self._event.clear()

    async def __aexit__(self, *exception: object) -> None:
        self._end()


def stream_log(
    request: Request, service: Service, caller: Caller, job: Job, attempt: str | None, offset: int
) -> EventSourceResponse:
    """The console log, attempt after attempt. Ids are `attempt:offset` of what follows the piece."""

    ending = anyio.Event()

    async def pieces() -> AsyncIterator[ServerSentEvent]:
        at, place = attempt, offset
        while not ending.is_set() and not await request.is_disconnected():
            try:
                chunks, over = await run_in_threadpool(_log, service, caller, job.id, at, place)
            except NotFound:
                chunks = None
            if not await run_in_threadpool(still_valid, service, caller):  # asked after reading, as above
                yield ServerSentEvent(REFUSED, event="end", id=f"{at or ''}:{place}")
                return
            if chunks is None:
                yield ServerSentEvent(GONE, event="end", id=f"{at or ''}:{place}")
                return
            for at, place, text in chunks:
                yield ServerSentEvent(
                    json.dumps({"attempt": at, "offset": place, "text": text}, ensure_ascii=False),
                    event="log",
                    id=f"{at}:{place}",
                )
            if chunks:
                continue
            if over:
                yield ServerSentEvent("{}", event="end", id=f"{at or ''}:{place}")
                return
            await asyncio.sleep(LOG_SECONDS)

    return _answer(pieces(), ending)


def _log(
    service: Service, caller: Caller, job_id: str, attempt: str | None, offset: int
) -> tuple[list[tuple[str, int, str]], bool]:
    """(attempt, offset behind it, text) of what was printed after a place, and whether nothing more will come."""
    over = service.store.job(job_id, caller.scope).over
    ids = [each.id for each in service.store.attempts(job_id, caller.scope)]
    begin = ids.index(attempt) if attempt in ids else 0
    chunks = []
    for each in ids[begin:]:
        place = offset if each == attempt else 0
        piece = _piece(log_folder(service, job_id, each), place)
        if piece:
            end, text = _whole(piece, over or each != ids[-1])
            if end:
                chunks.append((each, place + end, service.redactor.text(text)))
    return chunks, over


def _piece(folder: Path, after: int) -> bytes:
    piece = b""
    for part in read_console(folder, after):
        piece += part
        if len(piece) >= LOG_PIECE:
            break
    return piece


def _whole(piece: bytes, ended: bool) -> tuple[int, str]:
    """The part up to the last line's end, so that no secret and no letter is cut in two, and its length."""
    end = piece.rfind(b"\n") + 1
    if (end == 0 and (ended or len(piece) >= LOG_PIECE)) or (ended and len(piece) < LOG_PIECE):
        end = len(piece)
    return end, piece[:end].decode("utf-8", "replace")


def log_folder(service: Service, job_id: str, attempt: str) -> Path:
    """The folder of an attempt, which its executor keeps the console log in."""
    return service.settings.jobs / job_id / "attempts" / attempt


def whole_log(service: Service, caller: Caller, job: Job, limit: int) -> str:
    """The last part of the log of every attempt together, redacted."""
    ids = [each.id for each in service.store.attempts(job.id, caller.scope)]
    text = b""
    for each in reversed(ids):
        text = b"".join(read_console(log_folder(service, job.id, each))) + text
        if len(text) >= limit:
            break
    return service.redactor.text(text[-limit:].decode("utf-8", "replace"))
