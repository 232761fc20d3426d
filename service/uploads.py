"""Uploaded files: where their bytes lie, and how chunks, whole bodies and files at a URL are received.

The bytes of a file lie in `HOME/files/<project>/<id><suffix>`, with `.part` behind it until all have arrived. The size
of the `.part` file is the truth about how much has arrived: a chunk is appended under a lock and synced before the
store is told. Complete files are never written again.

Every byte is reserved in the store before it is written, so that many uploads at once, through several servers, never
keep more than a project is allowed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePath
from typing import IO, cast
from urllib.parse import unquote, urlsplit

import anyio
from starlette.concurrency import run_in_threadpool

from pipelines.core.errors import FineryError
from service.safety.fetching import Fetched, fetch
from service.settings import Settings
from service.store.errors import Conflict
from service.store.errors import TooLarge as TooLarge
from service.store.files import READY, File
from service.store.store import Store

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
    digest = hashlib.sha256()
    size = 0
    path = part_path(settings, file)
    if path.exists():
        with open(path, "rb") as part:
            while piece := part.read(PIECE):
                digest.update(piece)
                size += len(piece)
    return digest.hexdigest(), size


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


AHEAD = 16 * PIECE
"""Reserved at once for a file whose size nobody announced; what is not needed is given back at the end of the chunk."""
Fetch = Callable[[str, IO[bytes], int], Fetched]


def begin(
    store: Store,
    settings: Settings,
    project: str,
    filename: str,
    purpose: str,
    *,
    size: int | None = None,
    sha256: str | None = None,
    by: str = "",
) -> File:
    """Announce a file. Raises TooLarge when it cannot fit."""
    _refuse_large(settings, size or 0)
    return store.create_file(
        project, safe_name(filename), purpose, bytes=size, sha256=sha256, created_by=by, most=settings.max_project_bytes
    )


def refuse_upload(store: Store, settings: Settings, project: str, least: int) -> None:
    """Before a body is read: raise TooLarge or DiskQuotaExceeded where a file of at least so many bytes cannot fit."""
    _refuse_large(settings, least)
    store.refuse_file(project, least, settings.max_project_bytes)


def reserve(store: Store, settings: Settings, file: File, least: int) -> None:
    """Reserve the bytes that a file will have at least, before the first. Raises TooLarge, DiskQuotaExceeded."""
    if least:
        store.reserve_file(file.id, least, least, settings.max_project_bytes)


def _refuse_large(settings: Settings, size: int) -> None:
    if size > settings.max_file_bytes:
        raise TooLarge(f"the file has {size} bytes, at most {settings.max_file_bytes} are allowed")


class _Room:
    """How far one file may grow; asks the store for more when what it was given is used up."""

    def __init__(self, store: Store, settings: Settings, file: File) -> None:
        self._store = store
        self._settings = settings
        self._file = file
        self._granted = file.bytes or 0

    def grow(self, size: int) -> None:
        """Reserve so many bytes in all, or some more. Raises TooLarge: nothing of them may be written then."""
        if size <= self._granted:
            return
        if self._file.bytes is not None:
            raise TooLarge(f"file '{self._file.id}' may have at most {self._file.bytes} bytes, as announced")
        most = self._settings.max_file_bytes
        if size > most:
            raise TooLarge(f"file '{self._file.id}' may have at most {most} bytes")
        self._granted = self._store.reserve_file(
            self._file.id, size, min(most, size + AHEAD), self._settings.max_project_bytes
        )


class _Writer:
    """Writes to a part what there is room for."""

    def __init__(self, part: IO[bytes], room: _Room) -> None:
        self._part = part
        self._room = room
        self.size = 0

    def write(self, piece: bytes) -> int:
        """Reserve, then write. Raises TooLarge."""
        self._room.grow(self.size + len(piece))
        self.size += len(piece)
        return self._part.write(piece)


async def append(store: Store, settings: Settings, file: File, offset: int, pieces: AsyncIterator[bytes]) -> int:
    """Write what comes behind `offset`; returns how much there is then. What arrived before an error stays.

    Raises WrongOffset, TooLarge, or Conflict when the file is complete.
    """
    if file.state == READY:
        raise Conflict(f"file '{file.id}' is complete")
    opened = opened_part(settings, file, offset)
    part = await run_in_threadpool(opened.__enter__)
    writer = _Writer(part, _Room(store, settings, file))
    writer.size = offset
    try:
        waiting = bytearray()
        try:
            async for piece in pieces:
                waiting += piece
                if len(waiting) >= PIECE:
                    ready, waiting = bytes(waiting), bytearray()
                    await run_in_threadpool(writer.write, ready)
        finally:
            if waiting:  # of a sender that went away too: what arrived stays
                with anyio.CancelScope(shield=True):
                    await run_in_threadpool(writer.write, bytes(waiting))
    finally:
        # also when the sender went away: what is reserved and not used is given back
        with anyio.CancelScope(shield=True):
            size = await run_in_threadpool(_settled, store, settings, file, opened, part)
    return size


def _settled(
    store: Store, settings: Settings, file: File, opened: AbstractContextManager[IO[bytes]], part: IO[bytes]
) -> int:
    """Tell the store how much lies on the disk while the part is still locked, then let the next chunk come."""
    try:
        part.flush()
        size = arrived(settings, file)
        store.advance_file(file.id, size, file.project)
    finally:
        opened.__exit__(None, None, None)
    return size


def finish(store: Store, settings: Settings, file: File, sha256: str | None = None) -> File:
    """All bytes have arrived: compare the checksum and make it a file that recipes can name. Again changes nothing.

    Raises Conflict when what arrived is not what was announced; the upload can then be deleted and begun anew.
    """
    if file.state == READY:
        if sha256 not in (None, file.sha256):
            raise Conflict(f"file '{file.id}' is complete, and its SHA-256 is {file.sha256}")
        return file
    digest, size = checksum(settings, file)
    if sha256 not in (None, digest):
        raise Conflict(
            f"what arrived of file '{file.id}' has SHA-256 {digest}, not {sha256}; delete it and send it again"
        )
    if file.bytes is not None and size != file.bytes:
        raise Conflict(f"{size} of the {file.bytes} bytes of file '{file.id}' have arrived; send the rest first")
    if file.sha256 not in (None, digest):
        raise Conflict(
            f"what arrived of file '{file.id}' has SHA-256 {digest}, not {file.sha256} as announced; delete it and "
            "send it again"
        )
    settle(settings, file)
    return store.complete_file(file.id, digest, size, file.project)


def receive(
    store: Store, settings: Settings, project: str, filename: str, purpose: str, content: IO[bytes], by: str = ""
) -> File:
    """Keep a whole file that is at hand. Raises TooLarge."""
    file = begin(store, settings, project, filename, purpose, by=by)
    try:
        with opened_part(settings, file, 0) as part:
            writer = _Writer(part, _Room(store, settings, file))
            while piece := content.read(PIECE):
                writer.write(piece)
        return finish(store, settings, file)
    except BaseException:
        discard(store, settings, file)
        raise


def from_url(
    store: Store,
    settings: Settings,
    project: str,
    url: str,
    filename: str | None,
    purpose: str,
    *,
    sha256: str | None = None,
    by: str = "",
    get: Fetch = fetch,
) -> File:
    """Fetch a file from the public internet. Raises FetchRefused, TooLarge, or Conflict when its checksum differs."""
    name = filename or unquote(urlsplit(url).path).rpartition("/")[2]
    file = begin(store, settings, project, name, purpose, by=by)
    try:
        with opened_part(settings, file, 0) as part:
            get(url, cast(IO[bytes], _Writer(part, _Room(store, settings, file))), settings.max_file_bytes)
        return finish(store, settings, file, sha256)
    except BaseException:
        discard(store, settings, file)
        raise


def discard(store: Store, settings: Settings, file: File) -> None:
    """Delete a file: the row first, so that no recipe names bytes that are gone."""
    store.delete_file(file.id, file.project)
    remove(settings, file)
