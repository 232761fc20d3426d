"""Standard input as the verbs read it: UTF-8 whatever the locale says, in lines that end with LF or CRLF alone."""

from __future__ import annotations

import sys

from pipelines.core.errors import DataError


def read_all() -> str:
    """The whole of it. Raises DataError for what is no UTF-8 text."""
    return _text(sys.stdin.buffer.read(), 1)


def read_line(number: int) -> str | None:
    """The next line without its end, None behind the last; `number` is its own, from 1. Raises DataError."""
    line = sys.stdin.buffer.readline()
    return _text(line, number).removesuffix("\n").removesuffix("\r") if line else None


def _text(content: bytes, first: int) -> str:
    """`content` begins with the line `first`."""
    try:
        return content.decode("utf-8-sig" if first == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line, byte = first + content.count(b"\n", 0, error.start), content[error.start]
        raise DataError(
            f"standard input is not UTF-8 text (byte {byte:#04x} in line {line}); convert it, for instance with iconv"
        ) from None
