"""Receiving files: chunks of a resumable upload, whole bodies, and files at a URL, into the store and onto the disk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import IO
from urllib.parse import unquote, urlsplit

from starlette.concurrency import run_in_threadpool

from service.safety.fetching import Fetched, fetch
from service.settings import Settings
from service.store.errors import Conflict
from service.store.files import READY, File
from service.store.store import Store
from service.uploads import TooLarge, arrived, checksum, opened_part, remove, safe_name, settle

PIECE = 1 << 20
Fetch = Callable[[str, IO[bytes], int], Fetched]


def begin(
    store: Store, settings: Settings, project: str, filename: str, purpose: str, *, size: int | None = None, sha256: str | None = None, by: str = ""
) -> File:
    """Announce a file. Raises TooLarge when it cannot fit."""
    if size is not None:
        check_room(store, settings, project, size)
    return store.create_file(project, safe_name(filename), purpose, bytes=size, sha256=sha256, created_by=by)


def check_room(store: Store, settings: Settings, project: str, size: int) -> None:
    """Raise TooLarge when a file of this size is too large, or the project's files together would be."""
    if size > settings.max_file_bytes:
        raise TooLarge(f"the file has {size} bytes, at most {settings.max_file_bytes} are allowed")
    used = store.bytes_used(project)
    if used + size > settings.max_project_bytes:
        raise TooLarge(f"the project has {used} bytes of files, at most {settings.max_project_bytes} are allowed; delete some first")


async def append(store: Store, settings: Settings, file: File, offset: int, pieces: AsyncIterator[bytes]) -> int:
    """Write what comes behind `offset`; returns how much there is then. What arrived before an error stays.

    Raises WrongOffset, TooLarge, or Conflict when the file is complete.
    """
    if file.state == READY:
        raise Conflict(f"file '{file.id}' is complete")
    room = await run_in_threadpool(_room, store, settings, file)
    opened = opened_part(settings, file, offset)
    part = await run_in_threadpool(opened.__enter__)
    try:
        size = offset
        waiting = bytearray()
        try:
            async for piece in pieces:
                size += len(piece)
                if size > room:
                    raise TooLarge(f"file '{file.id}' may have at most {room} bytes")
                waiting += piece
                if len(waiting) >= PIECE:
                    await run_in_threadpool(part.write, bytes(waiting))
                    waiting.clear()
        finally:
            part.write(waiting)
    finally:
        await run_in_threadpool(opened.__exit__, None, None, None)
    size = arrived(settings, file)
    await run_in_threadpool(store.advance_file, file.id, size, file.project)
    return size


def _room(store: Store, settings: Settings, file: File) -> int:
    """How large the file may become."""
    if file.bytes is not None:
        return file.bytes
    left = settings.max_project_bytes - store.bytes_used(file.project) + file.offset
    return min(settings.max_file_bytes, max(0, left))


def finish(store: Store, settings: Settings, file: File, sha256: str | None = None) -> File:
    """All bytes have arrived: compare the checksum and make it a file that recipes can name. Again changes nothing.

    Raises Conflict when what arrived is not what was announced; the upload can then be deleted and begun anew.
    """
    if file.state == READY:
        if sha256 not in (None, file.sha256):
            raise Conflict(f"file '{file.id}' is complete, and its SHA-256 is {file.sha256}")
        return file
    found, size = checksum(settings, file)
    if sha256 not in (None, found):
        raise Conflict(f"what arrived of file '{file.id}' has SHA-256 {found}, not {sha256}; delete it and send it again")
    if file.bytes is not None and size != file.bytes:
        raise Conflict(f"{size} of the {file.bytes} bytes of file '{file.id}' have arrived; send the rest first")
    if file.sha256 not in (None, found):
        raise Conflict(f"what arrived of file '{file.id}' has SHA-256 {found}, not {file.sha256} as announced; delete it and send it again")
    settle(settings, file)
    return store.complete_file(file.id, found, size, file.project)


def receive(store: Store, settings: Settings, project: str, filename: str, purpose: str, content: IO[bytes], by: str = "") -> File:
    """Keep a whole file that is at hand. Raises TooLarge."""
    file = begin(store, settings, project, filename, purpose, by=by)
    try:
        room = _room(store, settings, file)
        with opened_part(settings, file, 0) as part:
            size = 0
            while piece := content.read(PIECE):
                size += len(piece)
                if size > room:
                    raise TooLarge(f"the file has more than {room} bytes, which is all that may come")
                part.write(piece)
        return finish(store, settings, file)
    except BaseException:
        discard(store, settings, file)
        raise


def from_url(
    store: Store, settings: Settings, project: str, url: str, filename: str | None, purpose: str, *,
    sha256: str | None = None, by: str = "", get: Fetch = fetch,
) -> File:  # fmt: skip
    """Fetch a file from the public internet. Raises Refused, TooLarge, or Conflict when its checksum is another."""
    name = filename or unquote(urlsplit(url).path).rpartition("/")[2]
    file = begin(store, settings, project, name, purpose, by=by)
    try:
        with opened_part(settings, file, 0) as part:
            get(url, part, _room(store, settings, file))
        return finish(store, settings, file, sha256)
    except BaseException:
        discard(store, settings, file)
        raise


def discard(store: Store, settings: Settings, file: File) -> None:
    """Delete a file: the row first, so that no recipe names bytes that are gone."""
    store.delete_file(file.id, file.project)
    remove(settings, file)
