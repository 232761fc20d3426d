"""What a serving process and the server say to each other: JSON objects, one a line, over a Unix socket.

The server listens in the process's own folder and takes one connection, which must begin with the key that it gave:

    process  {"key": K}
             {"ready": {…}}                          once, when the model is open; or {"failed": WHY} and the end
    server   {"id": 7, "do": "chat", …}              a question: chat, complete, embed or predict
             {"cancel": 7}
    process  {"id": 7, "piece": {"index": 0, "text": …, "tokens": […]}}        written text, as it is written
             {"id": 7, "finished": {"index": 0, "reason": "stop"}}             one of its texts is complete
             {"id": 7, "end": {…}}                   the last word on it: counts, vectors or rows
             {"id": 7, "error": {"message": …, "code": …}}                      the last word, where it failed
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

LONGEST = 64 << 20
"""Bytes of one line."""


class Channel:
    """This side of the connection. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send an object; nothing where the other side is gone, which `receive` tells."""
        line = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with self._lock, suppress(OSError):
            self._connection.sendall(line)

    def receive(self) -> Iterator[dict[str, Any]]:
        """What the other side says, until it closes or says what is no object."""
        with self._connection.makefile("rb") as lines:
            while line := lines.readline(LONGEST):
                try:
                    message = json.loads(line)
                except ValueError:
                    return
                if not isinstance(message, dict):
                    return
                yield message

    def close(self) -> None:
        """End the conversation: the other side's `receive` ends too."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def connect(path: str, key: str) -> Channel:
    """The channel to the server that listens at `path`. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    channel = Channel(connection)
    channel.send({"key": key})
    return channel
