"""A small client of the Docker Engine's HTTP API, over its unix socket or TCP. Names and shapes: docs.docker.com/reference/api/engine."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from service.executors.protocol import ExecutorError

API = "v1.41"
"""Docker 20.10 (2020) and later speak it."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Refused(ExecutorError):
    """The engine answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"the Docker engine refused it ({status}): {message}")


class Engine:
    """One engine. Each call is one connection, so that it may be used from any thread."""

    def __init__(self, address: str = "unix:///var/run/docker.sock", timeout: float = 30.0) -> None:
        """`unix:///path` or `tcp://host:port` (without TLS: loopback or a tunnel only)."""
        self.address = address
        self._timeout = timeout

    def get(self, path: str, **query: Any) -> Any:
        """The JSON answer. Raises Refused for a status of 400 and above, ExecutorError when nobody answers."""
        return self._json("GET", path, None, query)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        """The JSON answer, None for an empty one. 304 (already so) counts as done."""
        return self._json("POST", path, body, query)

    def delete(self, path: str, **query: Any) -> None:
        """Remove something."""
        self._json("DELETE", path, None, query)

    def logs(self, container: str) -> Iterator[bytes]:
        """What a container printed, both streams in order, without the frame headers of the engine."""
        connection, answer = self._ask("GET", f"/containers/{quote(container)}/logs", None, {"stdout": 1, "stderr": 1})
        try:
            while len(header := answer.read(8)) == 8:  # stream, three zeros, length: big-endian 32 bits
                yield answer.read(int.from_bytes(header[4:], "big"))
        finally:
            connection.close()

    def _json(self, verb: str, path: str, body: Any, query: dict[str, Any]) -> Any:
        connection, answer = self._ask(verb, path, body, query)
        try:
            text = answer.read()
            return json.loads(text) if text.strip() else None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ExecutorError(f"the Docker engine at {self.address} broke off its answer: {error}") from None
        finally:
            connection.close()

    def _ask(self, verb: str, path: str, body: Any, query: dict[str, Any]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = urlsplit(self.address)
        connection: http.client.HTTPConnection
        if parts.scheme == "unix":
            connection = _UnixConnection(parts.path, self._timeout)
        else:
            connection = http.client.HTTPConnection(parts.hostname or "localhost", parts.port or 2375, timeout=self._timeout)
        target = f"/{API}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            connection.request(verb, target, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ExecutorError(f"no Docker engine answers at {self.address}: {error}; start it, or choose another executor") from None
        if answer.status >= 400:
            text = answer.read()
            connection.close()
            try:
                message = str(json.loads(text)["message"])
            except (ValueError, KeyError, TypeError):
                message = text.decode(errors="replace")[:200]
            raise Refused(answer.status, message)
        return connection, answer
