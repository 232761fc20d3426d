"""What executors keep in an attempt's folder: JSON records, written whole or not at all, and the fence between two attempts.

The launcher imports this: the standard library only, and of that what loads at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import time

TYPE_CHECKING = False
"""As typing's, which takes longer to import than all the rest."""
if TYPE_CHECKING:
    from typing import Any


def write_record(folder: str, name: str, content: object) -> None:
    """Write JSON atomically and durably."""
    write_file(folder, name, json.dumps(content).encode())


def write_file(folder: str, name: str, content: bytes) -> None:
    """Write a file atomically and durably: temporary name, fsync, rename, fsync of the folder."""
    temporary = os.path.join(folder, f".{name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, os.path.join(folder, name))
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def read_record(folder: str | os.PathLike[str], name: str) -> dict[str, Any] | None:
    """A record, or None while there is none."""
    try:
        with open(os.path.join(folder, name), "rb") as file:
            content: dict[str, Any] = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return content


class Refused(Exception):
    """The attempt may not start; says why in one sentence."""


def take_fence(folder: str, token: int) -> int:
    """Lock the job's folder for this attempt and note its token. Returns the descriptor; raises Refused."""
    descriptor = os.open(os.path.join(folder, ".attempt.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + 2.0  # an attempt that has just written its last record may still be leaving
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > end:
                raise Refused(f"another attempt of this job still runs in {folder}") from None
            time.sleep(0.01)
    fence = os.path.join(folder, ".fence")
    try:
        with open(fence) as file:
            latest = int(file.read() or 0)
    except FileNotFoundError:
        latest = 0
    if latest > token:
        raise Refused(f"fencing token {token} is stale: an attempt with token {latest} was started in {folder}")
    if latest == token and token:
        raise Refused(f"the attempt with fencing token {token} was already started in {folder}")
    write_record(folder, ".fence", token)
    return descriptor
