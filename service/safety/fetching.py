"""Fetching a URL that a user gave, without letting it reach into the network that the server stands in.

Every connection is one of `pipelines.core.egress`: resolved once, every address public, connected to as checked.
Redirects are followed by hand, each checked anew.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO
from urllib.parse import urljoin, urlsplit

from pipelines.core import egress
from pipelines.core.egress import Resolve, is_public

PORTS = {"http": 80, "https": 443}
MOST_REDIRECTS = 5
PIECE = 1 << 16


class FetchRefused(ValueError):
    """The URL is not fetched; the message is one sentence."""


@dataclass(frozen=True)
class Fetched:
    """What came back."""

    url: str
    """Where it lay after redirects."""
    size: int
    content_type: str


def resolve(host: str, port: int) -> list[str]:
    """Every address of a host. Raises FetchRefused."""
    try:
        return egress.resolve(host, port)
    except egress.NoAddress:
        raise FetchRefused(f"'{host}' has no address; check the URL") from None


def fetch(
    url: str,
    into: IO[bytes],
    limit: int,
    seconds: float = 300.0,
    resolve: Resolve = resolve,
    allowed: Callable[[str], bool] = is_public,
    ports: tuple[int, ...] = (80, 443),
) -> Fetched:
    """Write what lies at `url` into a file, at most `limit` bytes. Raises FetchRefused."""
    end = time.monotonic() + seconds
    for _ in range(MOST_REDIRECTS + 1):
        connection, path = _open(url, resolve, allowed, ports, end)
        try:
            connection.request("GET", path, headers={"Accept-Encoding": "identity", "User-Agent": "finery"})
            answer = connection.getresponse()
            if answer.status in (301, 302, 303, 307, 308):
                url = urljoin(url, answer.headers.get("Location") or "")
                continue
            if answer.status != 200:
                raise FetchRefused(f"{_shown(url)} answered {answer.status} {answer.reason}, must be 200")
            size = _copy(answer, into, limit, end)
            return Fetched(url, size, answer.headers.get_content_type())
        except (OSError, http.client.HTTPException) as error:
            raise FetchRefused(f"{_shown(url)} could not be read: {type(error).__name__}") from None
        finally:
            connection.close()
    raise FetchRefused(f"the URL redirects more than {MOST_REDIRECTS} times")


def _open(
    url: str, resolve: Resolve, allowed: Callable[[str], bool], ports: tuple[int, ...], end: float
) -> tuple[http.client.HTTPConnection, str]:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
        host = egress.plain_host(parts.hostname or "")
    except ValueError:
        raise FetchRefused("the URL is not a valid one") from None
    if parts.scheme not in PORTS or not host:
        raise FetchRefused("the URL must begin with https:// or http:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise FetchRefused("the URL holds a login; give one that needs none")
    if port not in ports:
        raise FetchRefused(f"the URL names port {port}; allowed: {', '.join(map(str, ports))}")
    if any(ord(letter) <= 32 or ord(letter) > 126 for letter in parts.path + parts.query):
        raise FetchRefused("the URL holds a letter that must be percent-encoded")
    try:
        addresses = egress.checked_addresses(host, port, allowed, resolve)
    except (egress.NotAllowed, egress.NoAddress):
        raise FetchRefused(
            f"'{host}' has an address that is not on the public internet, or none; upload the file instead"
        ) from None
    kind = _Tls if parts.scheme == "https" else _CheckedConnection
    connection = kind(host, port, timeout=max(0.1, min(30.0, end - time.monotonic())))
    connection.addresses = addresses
    return connection, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


class _CheckedConnection(http.client.HTTPConnection):
    """Connects to an address that was checked, whatever the name says by now."""

    addresses: list[str]

    def connect(self) -> None:
        self.sock = egress.connect(self.addresses, self.port, self.timeout or 30.0)


class _Tls(_CheckedConnection):
    default_port = 443

    def connect(self) -> None:
        super().connect()
        self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def _copy(answer: http.client.HTTPResponse, into: IO[bytes], limit: int, end: float) -> int:
    size = 0
    while piece := answer.read(PIECE):
        size += len(piece)
        if size > limit:
            raise FetchRefused(f"the file at the URL is larger than {limit} bytes")
        if time.monotonic() > end:
            raise FetchRefused("the file at the URL did not arrive in time")
        into.write(piece)
    if answer.length:
        raise FetchRefused("the connection ended before the whole file had arrived")
    return size


def _shown(url: str) -> str:
    """The URL without its query, which may hold a key."""
    return url.partition("?")[0][:200]
