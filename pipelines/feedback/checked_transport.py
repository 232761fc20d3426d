"""What judges are asked through: httpx on the checked connections of `pipelines.outgoing`, or through the server's own proxy."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from typing import Any

import certifi
import httpx

from pipelines.outgoing import NoAddress, Resolve, checked_addresses, is_public, resolve

REMEMBERED = 60.0
"""Seconds that a transport keeps a name's checked addresses."""


def transport(
    allowed: Callable[[str], bool] = is_public, connections: int = 10, resolve: Resolve = resolve, egress: str | None = None
) -> httpx.AsyncBaseTransport:
    """What an `httpx.AsyncClient(trust_env=False)` sends its requests through: the proxy `egress`, or checked connections of its own."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    context = tls_context()
    if egress:
        return httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits, proxy=egress)
    return CheckedTransport(lambda: httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits), allowed, resolve)


def tls_context() -> ssl.SSLContext:
    """Verifies names and chains by the system's certificates and certifi's, or by SSL_CERT_FILE and SSL_CERT_DIR alone."""
    context = ssl.create_default_context()
    if not os.environ.get("SSL_CERT_FILE") and not os.environ.get("SSL_CERT_DIR"):
        context.load_verify_locations(certifi.where())
    return context


class CheckedTransport(httpx.AsyncBaseTransport):
    """Sends each request to a checked address of its host; host header and TLS name stay the host's."""

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport], allowed: Callable[[str], bool], resolve: Resolve) -> None:
        self._make = make
        self._allowed = allowed
        self._resolve = resolve
        self._inner: dict[tuple[str, str, int], httpx.AsyncBaseTransport] = {}
        self._known: dict[tuple[str, int], tuple[float, list[str]]] = {}
        self._asking = asyncio.Lock()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As httpx has it. Raises NotAllowed for a host with an address that may not be connected to."""
        host = request.url.raw_host.decode("ascii")
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        key = (request.url.scheme, host, port)  # connections are kept by address: two names must not share one
        inner = self._inner.get(key)
        if inner is None:
            inner = self._inner[key] = self._make()
        problem: Exception = httpx.ConnectError(f"{host} has no address")
        for address in await self._addresses(host, port, request):
            sent = httpx.Request(
                request.method, request.url.copy_with(host=address), headers=request.headers, stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )  # fmt: skip
            try:
                return await inner.handle_async_request(sent)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                problem = error
        self._known.pop((host, port), None)
        raise problem

    async def _addresses(self, host: str, port: int, request: httpx.Request) -> list[str]:
        async with self._asking:  # many questions at once are one look-up
            until, found = self._known.get((host, port), (0.0, []))
            if time.monotonic() >= until:
                patience: Any = request.extensions.get("timeout", {}).get("connect")
                try:
                    looking = asyncio.to_thread(checked_addresses, host, port, self._allowed, self._resolve)
                    found = await asyncio.wait_for(looking, patience)
                except NoAddress as error:
                    raise httpx.ConnectError(str(error), request=request) from None
                except TimeoutError:
                    raise httpx.ConnectTimeout(f"{host} was not resolved in time", request=request) from None
                self._known[host, port] = (time.monotonic() + REMEMBERED, found)
            return found

    async def aclose(self) -> None:
        """Close every connection."""
        for inner in self._inner.values():
            await inner.aclose()
        self._inner.clear()
