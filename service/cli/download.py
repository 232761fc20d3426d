"""`finery models download`: the files of a published model from a service, whole or not there.

They come into a hidden folder beside their place, which a broken download leaves behind and the next one goes on with,
are held against the checksums that the publication states, and take their place in one rename.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from pipelines.core.errors import Busy, CommandError, FineryError
from pipelines.core.files import archive_name, lock, read_json, sha256_of
from pipelines.core.results import MARKER
from service.cli.jobs import connect, quoted, tell
from service.cli.models import reference
from service.cli.publish import size
from service.client import Connection


def download(model: str, to: Path | None, server: str | None, token_file: Path | None, as_json: bool) -> int:
    """Bring a version's files here. Returns the exit code."""
    with connect(server, token_file) as connection:
        found = connection.get(f"/models/{quoted(model)}")
        place = f"/models/{quoted(found['id'])}/files"
        files = {str(each["path"]): int(each["bytes"]) for each in connection.get(place)}
        checksums = _checksums(connection, place, files, reference(found))
        files = {name: files[name] for name in (*checksums, MARKER)}
        folder = (to or Path("registry") / f"{archive_name(found['name'])}-{found['version']}").expanduser()
        try:
            folder.absolute().parent.mkdir(parents=True, exist_ok=True)
            with lock(_beside(folder, "lock"), wait=False, remove=True):
                if os.path.lexists(folder):
                    _refuse_other(folder, checksums, reference(found))
                else:
                    _fetch(connection, place, files, checksums, _beside(folder, "download"))
                    os.rename(_beside(folder, "download"), folder)
        except Busy:
            raise FineryError(
                f"another process is downloading to {folder}; wait for it, or name another with --to"
            ) from None
        except OSError as error:
            raise FineryError(
                f"{folder} cannot be written: {error.strerror}; what came so far is kept for another try"
            ) from None
    answer = {"model": found, "folder": str(folder), "files": len(files), "bytes": sum(files.values())}
    line = f"{reference(found)}  {folder}  {len(files)} files, {size(answer['bytes'])}, as published"
    return tell(answer, as_json, line)


def _beside(folder: Path, ending: str) -> Path:
    """What is kept beside a folder while it is on its way."""
    return folder.absolute().with_name(f".{folder.absolute().name}.{ending}")


def _checksums(connection: Connection, place: str, files: Mapping[str, int], model: str) -> dict[str, str]:
    """What each file but the marker must be, by the publication. Raises FineryError where it says nothing usable."""
    marker = connection.get(f"{place}/{MARKER}") if MARKER in files else None
    checksums = marker.get("checksums") if isinstance(marker, dict) else None
    if not isinstance(checksums, dict) or not checksums:
        raise FineryError(f"'{model}' has no {MARKER} with checksums, so nothing says what its files must be")
    if outside := [name for name in checksums if PurePosixPath(name).is_absolute() or ".." in name.split("/")]:
        raise FineryError(f"'{model}' names a file '{outside[0]}', which would lie outside of its folder")
    if missing := [name for name in checksums if name not in files]:
        raise FineryError(f"'{missing[0]}' of '{model}' is gone from the service; whoever runs it must restore it")
    return {str(name): str(digest) for name, digest in checksums.items()}


def _refuse_other(folder: Path, checksums: Mapping[str, str], model: str) -> None:
    """Raise CommandError unless the folder is this publication already."""
    if read_json(folder / MARKER).get("checksums") != checksums:
        raise CommandError(f"{folder} is there already and is not '{model}'; name another folder with --to")
    if changed := [name for name in checksums if not _is(folder / name, checksums[name])]:
        raise CommandError(f"{folder} is '{model}', but '{changed[0]}' was changed; name another folder with --to")


def _is(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_of(path) == digest


def _fetch(
    connection: Connection, place: str, files: Mapping[str, int], checksums: Mapping[str, str], folder: Path
) -> None:
    """Fill the folder, going on with what an earlier try left of the same publication."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    if folder.is_dir() and read_json(folder / MARKER).get("checksums") != checksums:
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    needed = sum(files.values()) - sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if needed > (free := shutil.disk_usage(folder).free):
        raise FineryError(f"{size(needed)} are to come, and the disk of {folder.parent} has {size(free)} left")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True) as progress:
        for name in sorted(files, key=lambda name: name != MARKER):  # it says what an unfinished folder is
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() and path.stat().st_size > files[name]:
                path.unlink()
            start = path.stat().st_size if path.is_file() else 0
            bar = progress.add_task(name, total=files[name], completed=start)
            connection.save(f"{place}/{quote(name)}", path, files[name], partial(progress.advance, bar))
            if name in checksums and not _is(path, checksums[name]):
                path.unlink()
                raise FineryError(f"'{name}' did not come as it was published (its SHA-256 is another); try again")
