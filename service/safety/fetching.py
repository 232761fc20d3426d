"""Fetching a URL that a user gave, without letting it reach into the network that the server stands in.

A host's name is resolved once, every address that it has must be public, and the connection goes to the address that was
checked: a name that answers differently the second time gains nothing. Redirects are followed by hand, each checked anew.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO
from urllib.parse import urljoin, urlsplit

PORTS = {"http": 80, "https": 443}
MOST_REDIRECTS = 5
PIECE = 1 << 16
NAT64 = ipaddress.ip_network("64:ff9b::/96")

Resolve = Callable[[str, int], list[str]]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refused(ValueError):
    """The URL is not fetched; the message is one sentence."""


@dataclass(frozen=True)
class Fetched:
    """What came back."""

    url: str
    """Where it lay after redirects."""
    size: int
    content_type: str


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet: neither private, loopback, link-local, multicast nor reserved."""
    try:
        found: Address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(each.is_global and not each.is_multicast and not each.is_reserved for each in _embedded(found))


def _embedded(address: Address) -> list[Address]:
    """The address and the IPv4 addresses that translators would find in it. The translators' own ranges count as public."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address in NAT64:
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    inner = [each for each in (address.sixtofour, *(address.teredo or ())) if each is not None]
    return [address, *inner]


def resolve(host: str, port: int) -> list[str]:
    """Every address of a host. Raises Refused."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Refused(f"'{host}' has no address; check the URL") from None
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def fetch(
    url: str, into: IO[bytes], limit: int, seconds: float = 300.0,
    resolve: Resolve = resolve, allowed: Callable[[str], bool] = is_public, ports: tuple[int, ...] = (80, 443),
) -> Fetched:  # fmt: skip
    """Write what lies at `url` into a file, at most `limit` bytes. Raises Refused."""
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
                raise Refused(f"{_shown(url)} answered {answer.status} {answer.reason}, must be 200")
            size = _copy(answer, into, limit, end)
            return Fetched(url, size, answer.headers.get_content_type())
        except (OSError, http.client.HTTPException) as error:
            raise Refused(f"{_shown(url)} could not be read: {type(error).__name__}") from None
        finally:
            connection.close()
    raise Refused(f"the URL redirects more than {MOST_REDIRECTS} times")


def _open(
    url: str, resolve: Resolve, allowed: Callable[[str], bool], ports: tuple[int, ...], end: float
) -> tuple[http.client.HTTPConnection, str]:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
        host = (parts.hostname or "").encode("idna").decode() if parts.hostname else ""
    except (ValueError, UnicodeError):
        raise Refused("the URL is not a valid one") from None
    if parts.scheme not in PORTS or not host:
        raise Refused("the URL must begin with https:// or http:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise Refused("the URL holds a login; give one that needs none")
    if port not in ports:
        raise Refused(f"the URL names port {port}; allowed: {', '.join(map(str, ports))}")
    if any(ord(letter) <= 32 or ord(letter) > 126 for letter in parts.path + parts.query):
        raise Refused("the URL holds a letter that must be percent-encoded")
    addresses = resolve(host, port)
    if not addresses or not all(allowed(address) for address in addresses):
        raise Refused(f"'{host}' has an address that is not on the public internet; upload the file instead")
    kind = _Tls if parts.scheme == "https" else _Plain
    connection = kind(host, port, timeout=max(0.1, min(30.0, end - time.monotonic())))
    connection.address = addresses[0]
    return connection, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


class _Plain(http.client.HTTPConnection):
    """Connects to the address that was checked, whatever the name says by now."""

    address: str

    def connect(self) -> None:
        self.sock = socket.create_connection((self.address, self.port), self.timeout)


class _Tls(_Plain):
    default_port = 443

    def connect(self) -> None:
        super().connect()
        self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def _copy(answer: http.client.HTTPResponse, into: IO[bytes], limit: int, end: float) -> int:
    size = 0
    while piece := answer.read(PIECE):
        size += len(piece)
        if size > limit:
            raise Refused(f"the file at the URL is larger than {limit} bytes")
        if time.monotonic() > end:
            raise Refused("the file at the URL did not arrive in time")
        into.write(piece)
    if answer.length:
        raise Refused("the connection ended before the whole file had arrived")
    return size


def _shown(url: str) -> str:
    """The URL without its query, which may hold a key."""
    return url.partition("?")[0][:200]
