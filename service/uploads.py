"""The bytes of uploaded files: `HOME/files/<project>/<id><suffix>`, with `.part` behind it until all have arrived.

The size of the `.part` file is the truth about how much has arrived: a chunk is appended under a lock and synced before
the store is told. Complete files are never written again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import IO

from pipelines.errors import FineryError
from service.settings import Settings
from service.store.errors import Conflict
from service.store.errors import TooLarge as TooLarge
from service.store.files import File

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt", ".jinja", ".jinja2", ".j2")
"""Endings that recipes tell formats by; a file with another one can be kept, but no recipe can read it."""
PIECE = 1 << 20


class WrongOffset(FineryError):
    """A chunk does not continue what has arrived."""

    reason = "wrong_offset"

    def __init__(self, expected: int, given: int) -> None:
        self.expected = expected
        super().__init__(f"the chunk begins at byte {given}, but {expected} bytes have arrived; send what follows them")


def safe_name(filename: str) -> str:
    """The last part of a name, without control characters; `file` when nothing is left."""
    name = PurePath(filename.replace("\\", "/")).name
    plain = "".join(letter for letter in name if letter.isprintable())[:200].strip()
    return plain if plain.strip(".") else "file"


def suffix_of(filename: str) -> str:
    """The ending that tells a file's format; empty for endings that no recipe reads."""
    suffix = PurePath(filename).suffix.lower()
    return suffix if suffix in SUFFIXES else ""


def file_path(settings: Settings, file: File) -> Path:
    """Where a complete file lies."""
    return settings.files / file.project / f"{file.id}{suffix_of(file.filename)}"


def part_path(settings: Settings, file: File) -> Path:
    """Where a file lies while it arrives."""
    path = file_path(settings, file)
    return path.with_name(f"{path.name}.part")


@contextmanager
def opened_part(settings: Settings, file: File, offset: int) -> Iterator[IO[bytes]]:
    """The end of the part file, locked, when exactly `offset` bytes have arrived. Raises WrongOffset, or Conflict."""
    path = part_path(settings, file)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(path, "ab") as part:
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another chunk of file '{file.id}' is on its way; wait for its answer") from None
        arrived = os.fstat(part.fileno()).st_size
        if arrived != offset:
            raise WrongOffset(arrived, offset)
        try:
            yield part
        finally:
            part.flush()
            os.fsync(part.fileno())


def arrived(settings: Settings, file: File) -> int:
    """How many bytes of a file have arrived."""
    for path in (part_path(settings, file), file_path(settings, file)):
        try:
            return path.stat().st_size
        except FileNotFoundError:
            continue
    return 0


def checksum(settings: Settings, file: File) -> tuple[str, int]:
    """SHA-256 and size of what has arrived."""
    found = hashlib.sha256()
    size = 0
    path = part_path(settings, file)
    if path.exists():
        with open(path, "rb") as part:
            while piece := part.read(PIECE):
                found.update(piece)
                size += len(piece)
    return found.hexdigest(), size


def settle(settings: Settings, file: File) -> Path:
    """Give a part file, all of which has arrived, its final name."""
    part, path = part_path(settings, file), file_path(settings, file)
    if not part.exists() and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part.touch()
    if part.exists():
        part.chmod(0o440)
        part.rename(path)
    return path


def remove(settings: Settings, file: File) -> None:
    """Delete a file's bytes, as far as there are any."""
    for path in (part_path(settings, file), file_path(settings, file)):
        path.unlink(missing_ok=True)
