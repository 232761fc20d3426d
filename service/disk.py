"""Room on the disk: a reserve that new work may not touch, and a ballast that lets a server start again when nothing is left.

SQLite needs some kilobytes to open a database. The ballast is a file of zeros in the home, given up when the server starts on a full
disk, and made again when there is room: whoever frees space finds a service that answers.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

BALLAST = ".ballast"
BALLAST_BYTES = 8 << 20
log = logging.getLogger(__name__)


def free(home: Path) -> int:
    """Bytes that the server may still write."""
    return shutil.disk_usage(home).free


def sentence(home: Path, reserve: int) -> str | None:
    """Why nothing new is taken; None while there is room."""
    left = free(home)
    if left >= reserve:
        return None
    return f"The server's disk has {left >> 20} MB left, less than its reserve of {reserve >> 20} MB; an admin must free some space (`finery gc`)."


def drop_ballast(home: Path, least: int = BALLAST_BYTES) -> bool:
    """Give the ballast up where the disk is full; returns whether it was."""
    path = home / BALLAST
    if free(home) >= least or not path.is_file():
        return False
    path.unlink()
    log.warning("the disk of %s is full: %d MB that were kept for this are given up; free some space", home, BALLAST_BYTES >> 20)
    return True


def keep_ballast(home: Path, reserve: int) -> None:
    """Make the ballast where there is room for it and the reserve."""
    path = home / BALLAST
    if path.exists() or free(home) < reserve + 2 * BALLAST_BYTES:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        path.unlink(missing_ok=True)
        log.warning("no ballast is kept in %s: %s", home, error.strerror)
