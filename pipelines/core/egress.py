"""The one connector for requests to addresses that a recipe or an upload names: resolved, checked, connected.

An address is judged by where packets to it end: by the IPv4 address that it maps, embeds or translates to as well.
The connection goes to the address that was checked, so that a name that answers differently the second time gains
nothing; TLS is verified against the name. Proxy variables are not read: a server that wants a proxy in between names
it in FINERY_EGRESS.

The standard library only: the egress process of the service loads this file by its path.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
import unicodedata
from collections.abc import Callable, Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], list[str]]

EGRESS = "FINERY_EGRESS"
"""`http://host:port` of the proxy that requests of an attempt go through; it resolves and checks by the same rules."""
_V4 = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
NOT_PUBLIC_V4 = tuple(map(ipaddress.IPv4Network, _V4))
"""IANA's special-purpose registry, multicast and reserved: this list, because what Python's `is_global` says
depends on its version."""
GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
"""The only part of IPv6 that is given out for hosts of the internet; site-local, unique local, 100::/64, 5f00::/16
and ::/8 lie outside."""
NOT_PUBLIC_V6 = tuple(map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "3ffe::/16", "3fff::/20")))
"""Of that part: protocol assignments, documentation, the old 6bone."""
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Translated to the IPv4 address in the last 32 bits. The local-use 64:ff9b:1::/48 may put it anywhere and is
never public."""
ISATAP = (0x00005EFE, 0x02005EFE)
"""Interface identifiers whose last 32 bits are an IPv4 address that packets are tunnelled to."""
LINK_LOCAL = tuple(map(ipaddress.ip_network, ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32")))
"""Where clouds answer every process with the machine's own credentials."""
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")


class NotAllowed(ValueError):
    """A host that may not be asked; says why in one sentence."""


class NoAddress(OSError):
    """A host without an address, for now."""


def is_public(address: str) -> bool:
    """Whether an address in its usual spelling belongs to the public internet, judged by what it embeds.

    Spellings that only some programs take (0x7f000001, 127.1, 0177.0.0.1), zones and names are not public.
    """
    parsed = _parsed(address)
    return parsed is not None and all(map(_is_global, _meant(parsed)))


def may_be_private(address: str) -> bool:
    """Whether an address may be asked where private networks are allowed: all but link-local ones and multicast."""
    parsed = _parsed(address)
    return parsed is not None and not any(
        each.is_multicast or any(each in network for network in LINK_LOCAL if network.version == each.version)
        for each in (parsed, *_meant(parsed))
    )


def _parsed(address: str) -> Address | None:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    return None if getattr(parsed, "scope_id", None) else parsed


def _is_global(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in NOT_PUBLIC_V4)
    return address in GLOBAL_V6 and not any(address in network for network in NOT_PUBLIC_V6)


def _meant(address: Address) -> list[Address]:
    """The addresses that packets to this one reach or pass: itself, or the IPv4 addresses that it stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in NAT64:
        return [last]
    addresses: list[Address] = list(address.teredo or ())
    if address.sixtofour is not None:
        addresses.append(address.sixtofour)
    addresses = addresses or [address]
    if (int(address) >> 32) & 0xFFFFFFFF in ISATAP:
        addresses.append(last)
    return addresses


def plain_host(host: str) -> str:
    """A host as resolvers see it: full-width digits and dots folded, IDNA, lower case, no brackets, no final dot;
    empty if it can be none."""
    folded = unicodedata.normalize("NFKC", host).replace("\u3002", ".").strip("[]").removesuffix(".").lower()
    if ":" in folded:
        return folded
    try:
        plain = folded.encode("idna").decode("ascii").lower() if not folded.isascii() else folded
    except UnicodeError:
        return ""
    return plain if len(plain) <= 253 and _HOST.fullmatch(plain) else ""


def is_literal(host: str) -> bool:
    """Whether a host is meant as an address in any spelling: it holds a colon, or its last part is a number (as
    the URL standard has it)."""
    return ":" in host or _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]) is not None


def resolve(host: str, port: int) -> list[str]:
    """Every address of a host, in the resolver's order. Raises NoAddress."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NoAddress(f"'{host}' has no address: {error}") from None
    return list(dict.fromkeys(str(each[4][0]) for each in addresses))


def checked_addresses(
    host: str, port: int, allowed: Callable[[str], bool] = is_public, resolve: Resolve = resolve
) -> list[str]:
    """The addresses of a host, every one of which may be connected to. Asks the resolver once. Raises NotAllowed
    and NoAddress."""
    name = plain_host(host)
    if not name:
        raise NotAllowed(f"'{host}' is no name of a host")
    addresses = resolve(name, port)
    if not addresses:
        raise NoAddress(f"'{host}' has no address")
    if not all(map(allowed, addresses)):
        raise NotAllowed(f"'{host}' lies in a private network")
    return addresses


def connect(addresses: Sequence[str], port: int, timeout: float) -> socket.socket:
    """A connection to the first of these addresses that takes one. Raises OSError."""
    end = time.monotonic() + timeout
    problem: OSError | None = None
    for address in addresses:
        try:
            return socket.create_connection((address, port), max(0.1, end - time.monotonic()))
        except OSError as error:
            problem = error
    raise problem or NoAddress("no address was given")
