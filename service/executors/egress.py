"""The way out for an isolated attempt: an HTTP proxy outside of its network, which connects to public addresses only.

`CONNECT host:port` and requests for a whole URL. A name is looked up once, every address that it has is checked, and
the connection goes to the address that was checked. What clouds tell their machines (metadata) is refused always. One
process an attempt, started by its launcher and ended with it; sizes, times and the number of connections are bounded.

Standard library only, and nothing of site-packages: the launcher runs without.
"""

from __future__ import annotations

import base64
import ctypes
import ipaddress
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

MOST_CONNECTIONS = 128
MOST_HEAD = 64 << 10
"""Bytes of a request's line and headers."""
HEAD_SECONDS, CONNECT_SECONDS, IDLE_SECONDS = 20.0, 20.0, 300.0
_PIECE = 1 << 16
METADATA = tuple(
    ipaddress.ip_network(each)
    for each in (
        "169.254.0.0/16",
        "fe80::/10",
        "fd00:ec2::/32",
        "100.100.100.200/32",
        "168.63.129.16/32",
        "192.0.0.192/32",
        "fd20:ce::254/128",
    )
)
"""Where clouds answer their machines with what they are and may do: link-local ones, and those of Alibaba, Azure
and Oracle."""
INTERNAL = (".internal", ".local", ".localhost", ".localdomain", ".lan", ".home.arpa", ".intranet", ".corp")
"""Names that no public name server knows; asked of an upstream proxy they would mean something in its network."""
PER_ADDRESS_HEADERS = (
    b"proxy-authorization:",
    b"proxy-connection:",
    b"connection:",
    b"keep-alive:",
    b"host:",
    b"te:",
    b"upgrade:",
)

Resolve = Callable[[str, int], Sequence[str]]


class Denied(Exception):
    """The connection is not made; the message is one sentence."""

    def __init__(self, message: str, status: int = 403) -> None:
        super().__init__(message)
        self.status = status


def is_public_address() -> Callable[[str], bool]:
    """The check that all of Finery's outgoing requests share, loaded without what stands around it."""
    import importlib.util

    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for name in ("pipelines/core/egress.py", "service/safety/fetching.py"):
        path = os.path.join(root, name)
        if os.path.exists(path):
            spec = importlib.util.spec_from_file_location("finery_addresses", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules["finery_addresses"] = module
            spec.loader.exec_module(module)
            check: Callable[[str], bool] = module.is_public
            return check
    raise RuntimeError("the check of addresses is missing from this installation")


def is_metadata(address: str) -> bool:
    """Whether an address, or one that it embeds, is link-local or a cloud's own."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    every: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [ip]
    if isinstance(ip, ipaddress.IPv6Address):
        number = int(ip)
        every += [each for each in (ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())) if each is not None]
        every += [ipaddress.IPv4Address(number & 0xFFFFFFFF), ipaddress.IPv4Address(number >> 80 & 0xFFFFFFFF)]
    return any(each in network for each in every for network in METADATA if each.version == network.version)


def look_up(host: str, port: int) -> list[str]:
    """Every address of a name. Raises OSError."""
    return list(dict.fromkeys(str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))


def is_own(address: str) -> bool:
    """Whether an address, public or not, is this machine's: what listens there may be closed to everybody else."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as made:
        try:
            made.bind((address, 0))
        except OSError:
            return False
    return True


class Egress:
    """What may be reached, and the connections to it."""

    def __init__(
        self,
        rules: Mapping[str, Any],
        resolve: Resolve = look_up,
        is_public: Callable[[str], bool] | None = None,
        is_own: Callable[[str], bool] = is_own,
    ) -> None:
        """`rules`: `private` (addresses of the server's own networks are allowed), `refused_ports` there,
        `upstream` (the operator's proxy)."""
        self._private = bool(rules.get("private", False))
        self._refused_ports = frozenset(int(port) for port in rules.get("refused_ports", ()))
        self._upstream = urlsplit(str(rules["upstream"])) if rules.get("upstream") else None
        self._resolve = resolve
        self._is_public = is_public or is_public_address()
        self._is_own = is_own
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def serve(self, listener: socket.socket) -> None:
        """Answer for ever."""
        while True:
            self._slots.acquire()  # what comes beyond waits in the socket's own queue
            try:
                client, _ = listener.accept()
            except OSError:
                self._slots.release()
                time.sleep(0.05)
                continue
            threading.Thread(target=self._serve_one, args=(client,), daemon=True).start()

    def _serve_one(self, client: socket.socket) -> None:
        try:
            with client:
                self.answer(client)
        except OSError:
            pass
        finally:
            self._slots.release()

    def answer(self, client: socket.socket) -> None:
        """One connection of the attempt."""
        try:
            head, rest = _head(client)
            verb, target, headers = _parse(head)
            if verb == "CONNECT":
                host, port = _authority(target, None)
                server = self.connect(host, port)
                greeting = b"HTTP/1.1 200 Connection established\r\n\r\n"
            else:
                parts = urlsplit(target)
                if parts.scheme != "http" or parts.username is not None:
                    raise Denied("this proxy takes CONNECT, and http:// URLs without a login", 400)
                host, port = _authority(parts.netloc, 80)
                server = self.connect(host, port)
                path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                forwarded = [line for line in headers if not line.lower().startswith(PER_ADDRESS_HEADERS)]
                lines = [
                    f"{verb} {path} HTTP/1.1".encode(),
                    b"Host: " + parts.netloc.encode(),
                    b"Connection: close",
                    *forwarded,
                ]
                rest = b"\r\n".join(lines) + b"\r\n\r\n" + rest
                greeting = b""
        except Denied as error:
            text = f"{error}\n".encode()
            head = (
                f"HTTP/1.1 {error.status} Refused\r\nContent-Type: text/plain\r\nContent-Length: "
                f"{len(text)}\r\nConnection: close\r\n\r\n"
            ).encode()
            client.sendall(head + text)
            return
        with server:
            if greeting:
                client.sendall(greeting)
            if rest:
                server.sendall(rest)
            pump(client, server)

    def connect(self, host: str, port: int) -> socket.socket:
        """A connection to a host whose addresses were checked. Raises Denied."""
        if not (port in (80, 443) or port >= 1024):
            raise Denied(f"port {port} is not one that attempts may connect to: 80, 443, or 1024 and above")
        try:
            addresses = self._resolve(host, port)
        except (OSError, UnicodeError):
            addresses = []
        if not addresses:
            if self._upstream is None or "." not in host or f".{host.rstrip('.').lower()}".endswith(INTERNAL):
                raise Denied(f"'{host}' has no address", 502)
            return self._through_upstream(host, port)
        public = all(self._is_public(address) and not self._is_own(address) for address in addresses)
        if any(is_metadata(address) for address in addresses):
            raise Denied(f"'{host}' has an address that a cloud keeps for itself; attempts may not reach it")
        if not public and (not self._private or port in self._refused_ports):
            raise Denied(f"'{host}' has an address that is not on the public internet; attempts may not reach it")
        if public and self._upstream is not None:
            return self._through_upstream(host, port)
        problem: OSError | None = None
        for address in addresses[:4]:
            try:
                return socket.create_connection((address, port), CONNECT_SECONDS)
            except OSError as error:
                problem = error
        raise Denied(f"'{host}' could not be reached: {problem}", 502)

    def _through_upstream(self, host: str, port: int) -> socket.socket:
        """A tunnel through the operator's own proxy, which decides by its own rules as well."""
        upstream = self._upstream
        assert upstream is not None
        try:
            server = socket.create_connection((upstream.hostname or "", upstream.port or 3128), CONNECT_SECONDS)
        except (OSError, UnicodeError) as error:
            raise Denied(f"the operator's proxy could not be reached: {error}", 502) from None
        try:
            name = f"[{host}]" if ":" in host else host
            lines = [f"CONNECT {name}:{port} HTTP/1.1", f"Host: {name}:{port}"]
            if upstream.username is not None:
                login = base64.b64encode(
                    f"{unquote(upstream.username)}:{unquote(upstream.password or '')}".encode()
                ).decode()
                lines.append(f"Proxy-Authorization: Basic {login}")
            server.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            head, rest = _head(server)
            status = head.split(b"\r\n", 1)[0].split(b" ")
            if len(status) < 2 or status[1] != b"200" or rest:
                raise Denied(f"the operator's proxy refused the connection to '{host}'", 502)
        except (OSError, Denied) as error:
            server.close()
            raise error if isinstance(error, Denied) else Denied("the operator's proxy broke off", 502) from None
        return server


def _head(connection: socket.socket) -> tuple[bytes, bytes]:
    """The line and headers of a request or answer, and what came after them. Raises Denied."""
    end, content = time.monotonic() + HEAD_SECONDS, b""
    while b"\r\n\r\n" not in content:
        left = end - time.monotonic()
        if left <= 0:
            raise Denied("the request's headers did not arrive in time", 408)
        connection.settimeout(left)
        try:
            piece = connection.recv(8192)
        except TimeoutError:
            continue
        if not piece:
            raise Denied("the connection ended within the headers", 400)
        content += piece
        if len(content) > MOST_HEAD:
            raise Denied(f"the request's headers are longer than {MOST_HEAD} bytes", 431)
    head, _, rest = content.partition(b"\r\n\r\n")
    return head, rest


def _parse(head: bytes) -> tuple[str, str, list[bytes]]:
    first, *headers = head.split(b"\r\n")
    words = first.split(b" ")
    if (
        len(words) != 3
        or not words[2].startswith(b"HTTP/1.")
        or not first.isascii()
        or any(letter in b"\0\r\n" for letter in head.replace(b"\r\n", b""))
    ):
        raise Denied("the request is not HTTP/1.1", 400)
    return words[0].decode(), words[1].decode(), headers


def _authority(text: str, default: int | None) -> tuple[str, int]:
    """`host:port` in its parts. Raises Denied."""
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port or default
        host = (
            (parts.hostname or "").encode("idna").decode()
            if ":" not in (parts.hostname or "")
            else parts.hostname or ""
        )
    except (ValueError, UnicodeError):
        host, port = "", None
    if not host or port is None or parts.username is not None or parts.path:
        raise Denied("the request names no host and port", 400)
    return host, port


def pump(one: socket.socket, other: socket.socket) -> None:
    """Pass on what each side says until both have ended, or neither has said anything for long."""
    for each in (one, other):
        each.settimeout(IDLE_SECONDS)
    poller = select.poll()
    sides = {one.fileno(): (one, other), other.fileno(): (other, one)}
    for descriptor in sides:
        poller.register(descriptor, select.POLLIN)
    while sides:
        ready = poller.poll(IDLE_SECONDS * 1000)
        if not ready:
            return
        for descriptor, _ in ready:
            source, target = sides[descriptor]
            piece = source.recv(_PIECE)
            if piece:
                target.sendall(piece)
                continue
            poller.unregister(descriptor)
            del sides[descriptor]
            try:
                target.shutdown(socket.SHUT_WR)
            except OSError:
                return


def start(listener: int, rules: Mapping[str, object]) -> int:
    """Serve a listening socket from a child of this process, which dies with it. Returns its id."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(0)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != listener:
                try:
                    os.close(int(name))
                except OSError:
                    continue
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        with socket.socket(fileno=listener) as served:
            Egress(rules).serve(served)
    finally:
        os._exit(1)
