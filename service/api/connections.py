"""Connections to the server: how many there may be, how long each may keep silent, and the uvicorn server.

A connection without a request in progress costs its address a place and is closed when its time is over, or when all
places are taken and somebody else asks: a thousand idle ones keep nobody out.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipelines.core.errors import CommandError
from service.settings import Settings

MOST_FILES = 1 << 16
"""More open files than a server needs."""
BACKLOG = 512
AT_ONCE = 16
"""Connections that are accepted before those that are there already are looked at: each takes a file."""
HEADER_BYTES = 1 << 14
"""Of a request's first line and headers together."""
WINDOW_SECONDS = 30.0
WINDOW_BYTES = 3_000
"""What must arrive of a body in each such time, and how long a client may leave an answer unread."""
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
QUIET_SECONDS = 10.0
GRACE = 5
"""Seconds that open connections have to end when the server stops."""
FULL = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\ncontent-length: 0\r\n\r\n"
SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
log = logging.getLogger(__name__)


def raise_file_limit() -> int:
    """Let the process open as many files as it may; returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return MOST_FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. It names its protocol, because asyncio sets TCP_NODELAY only on sockets that do. Raises
    CommandError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "no valid name"
        raise CommandError(f"cannot listen on {host}, port {port}: {reason}; choose another --host or --port") from None
    return listener


def networks(texts: Sequence[str]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Addresses and networks such as `10.0.0.0/8`. Raises ValueError."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


class Places:
    """Who has a connection."""

    def __init__(self, most: int, each: int, exempt: Sequence[str] = ()) -> None:
        self.most = most
        self.each = each
        """Of one address; proxies that are trusted speak for many, and have no limit of their own."""
        self._exempt = networks(exempt)
        self.open: dict[ServerConnection, None] = {}
        """Oldest first."""
        self._by_address: Counter[str] = Counter()

    def enter(self, connection: ServerConnection) -> bool:
        """Give the connection a place, for which an older one that does nothing may have to go. False where there
        is none."""
        address = connection.address
        if self._by_address[address] >= self.each and not self._is_exempt(address):
            return False
        if len(self.open) >= self.most:
            idle = next((each for each in self.open if each.is_idle), None)
            if idle is None:
                return False
            idle.drop()
        self.open[connection] = None
        self._by_address[address] += 1
        return True

    def leave(self, connection: ServerConnection) -> None:
        """The connection is closed. Twice is once."""
        if connection in self.open:
            del self.open[connection]
            self._by_address[connection.address] -= 1
            self._by_address += Counter()  # those with none are forgotten

    def _is_exempt(self, address: str) -> bool:
        try:
            ip = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(ip in network for network in self._exempt)


class ServerConnection(H11Protocol):
    """uvicorn's protocol with a place, and with times for headers, bodies and unread answers."""

    places: Places
    header_seconds: float

    address = ""
    _timer: asyncio.TimerHandle | None = None
    _waits_for: str = ""
    _received = 0
    _blocked: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if not self.places.enter(self):
            transport.write(FULL)
            transport.close()
            return
        self._expect("headers", self.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.places.leave(self)
        self._expect("")
        self._unblocked()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._received += len(data)
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # it broke the protocol in the middle of an answer
            self.transport.abort()
            return
        self._look()

    def on_response_complete(self) -> None:
        self._expect("")
        super().on_response_complete()
        if not self.transport.is_closing():
            self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._blocked = self._blocked or self.loop.call_later(WINDOW_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._unblocked()
        super().resume_writing()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def drop(self) -> None:
        """Make room."""
        self.places.leave(self)
        self.transport.abort()

    def _look(self) -> None:
        """See what the client owes now."""
        state = self.conn.their_state
        if state is h11.IDLE:
            if self.timeout_keep_alive_task is None and self._waits_for != "headers":
                self._expect("headers", self.header_seconds)
        elif state is h11.SEND_BODY:
            if self._waits_for != "body":
                self._received = 0
                self._expect("body", WINDOW_SECONDS)
        else:
            self._expect("")

    def _expect(self, what: str, seconds: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._waits_for = what
        self._timer = self.loop.call_later(seconds, self._late) if what else None

    def _late(self) -> None:
        if self.transport.is_closing():
            return
        if self._waits_for == "body" and (self._received >= WINDOW_BYTES or self.flow.read_paused):
            self._received = 0
            self._expect("body", WINDOW_SECONDS)
            return
        if self._received and self.is_idle and self.conn.our_state is h11.IDLE:
            self.transport.write(SLOW)
        self._expect("")
        self.transport.close()

    def _unblocked(self) -> None:
        if self._blocked is not None:
            self._blocked.cancel()
            self._blocked = None


class Server(uvicorn.Server):
    """uvicorn's server, which tells in one line that connections cannot be accepted."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_quietly())
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)  # asyncio has made the queue as short as what it accepts at once


def _quietly() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    logged = float("-inf")

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        nonlocal logged
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in EXHAUSTED):
            loop.default_exception_handler(context)
        elif time.monotonic() - logged > QUIET_SECONDS:
            logged = time.monotonic()
            log.error("connections cannot be accepted: %s; raise the limit of open files (`ulimit -n`)", error.strerror)

    return handle


def server_of(app: Any, settings: Settings, files: int) -> Server:
    """The server for an application. `files` is how many the process may open: half of them are for connections at
    most."""
    held = Places(
        min(settings.max_connections, max(8, files // 2)),
        settings.max_connections_per_address,
        settings.trusted_proxies,
    )
    protocol = type("Connection", (ServerConnection,), {"places": held, "header_seconds": settings.header_seconds})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=AT_ONCE,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=max(1, round(settings.idle_seconds)),
        timeout_graceful_shutdown=GRACE,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
    )
    return Server(config)
