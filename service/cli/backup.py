"""`finery backup`: one archive of a service, database and files, right while it runs.

The database comes first, as one snapshot; then the files that its rows name. What a row names is written before the
row and never again (uploads, models, finished stages), so whatever the snapshot names is there, unless somebody
deleted it meanwhile: that is listed, not fatal. A running job's folder is taken as it is, newest files first: the
mark that makes a checkpoint complete is written after the checkpoint, so a mark that was read vouches for what is
read later. A folder that lost a file meanwhile is left out.

What jobs leave is written by strangers: no link is followed, no device opened, no file of holes read, no name kept
that a restore would refuse, and no job holds more files than MOST_OF_A_JOB. The archive is a plain tar (gzip where
its name ends so) of regular files, and last its `manifest.json` with every checksum. It holds every secret of the
service.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import sqlite3
import stat
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, MetaData, create_engine, make_url, select

from pipelines.core.errors import EXIT_DONE, CommandError
from service.api.health import version
from service.attempts.environment import stage_cache
from service.settings import Settings, read_settings
from service.store import tables
from service.store.audit import Actor, acting
from service.store.errors import Unavailable
from service.store.files import READY, file_of
from service.store.store import NEWEST, Store, current
from service.uploads import file_path, part_path

FORMAT = 1
MANIFEST = "manifest.json"
DATABASE = "database/finery.db"
KEYS = ("admin.token", "web.key")
FOLDERS = ("files", "models", "jobs", "secrets", "cache")
PIECE = 1 << 20
MOST_OF_A_JOB = 50_000
"""Files of one job's folder; the newest are taken."""
HOLES = 1 << 26
"""A file of a job that is larger than this and holds less than half of it on the disk is left out: it is made of
holes."""
CHANGING = ("jobs", "cache")
"""Folders with files that may change or vanish while they are read."""


class BadArchive(CommandError):
    """An archive that is not whole, or not ours."""


class ArchiveMember(BaseModel):
    """A file of the archive. `same_as` names an earlier one that it was a hard link to; it then has no content of
    its own."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(max_length=4096)
    member: str = Field("", max_length=255)
    bytes: int = Field(0, ge=0)
    sha256: str = ""
    same_as: str = ""


class ArchiveLink(BaseModel):
    """A symbolic link from one place of the home to another."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(max_length=4096)
    to: str = Field(max_length=4096)


class Manifest(BaseModel):
    """What an archive holds."""

    model_config = ConfigDict(extra="forbid")

    format: int = FORMAT
    finery: str
    schema_: str = Field(alias="schema", pattern="^[0-9]{4}$")
    database: str = Field(pattern="^(sqlite|postgresql)$")
    made: str
    home: str
    without: list[str] = []
    members: list[ArchiveMember] = []
    links: list[ArchiveLink] = []
    vanished: list[str] = []
    """What a row named, or a folder held, and what was gone when it was to be read."""
    left_out: list[str] = []
    """What is no backup's: sentences."""


def backup(target: Path, home: Path | None, database_url: str | None, runs: bool, stages: bool, as_json: bool) -> int:
    """Write an archive of the service. Returns the exit code. Raises CommandError; then nothing is left at `target`."""
    settings = read_settings(home=home, database_url=database_url)
    if target.is_dir():
        target = target / f"finery-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar"
    if target.exists():
        raise CommandError(f"{target} exists already: name another file, or a folder")
    sqlite = settings.url.startswith("sqlite")
    if not settings.home.is_dir() or (sqlite and not sqlite_file(settings.url).is_file()):
        raise CommandError(
            f"{settings.home} holds no service: name its folder with --home, and its database with --database-url"
        )
    store = Store(settings.url)
    try:
        if current(store) != NEWEST:
            raise CommandError(
                f"the database has schema {current(store)}, this version of finery reads {NEWEST}: back it up with "
                "the version that serves it"
            )
        note_in_trail(store, "backup.create", str(target.absolute()))
        without = [name for name, wanted in (("runs", runs), ("stages", stages)) if not wanted]
        manifest = Manifest(
            finery=version(),
            schema=NEWEST,
            database="sqlite" if sqlite else "postgresql",
            made=datetime.now(UTC).isoformat(),
            home=str(settings.home),
            without=without,
        )
        with _beside(target) as scratch, _snapshot(store.engine, scratch, sqlite) as (connection, dumped):
            partial = scratch / "archive"
            with _opened_for_writing(partial, target) as archive:
                writer = ArchiveWriter(archive, manifest, scratch)
                for path in dumped:
                    with open(path, "rb") as file:
                        writer.add(file, f"database/{path.name}")
                for path in _named(connection, settings, manifest):
                    writer.add_below(path, settings.home)
                writer.close()
            partial.chmod(0o600)
            os.link(partial, target)  # fails where somebody was faster, and replaces nothing
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror or error}") from None
    except Unavailable as error:
        raise CommandError(str(error)) from None
    finally:
        store.close()
    return report(
        manifest,
        target,
        as_json,
        f"{target}  {len(manifest.members)} files, {_size(manifest)}; it holds every secret of the service",
    )


def note_in_trail(store: Any, action: str, what: str, **details: Any) -> None:
    """Leave a row in the trail: a command on the server's machine did it."""
    with acting(Actor("console", "admin")):
        store.record(action, "service", what, None, user=str(os.getuid()), **details)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A private folder on the same file system, which is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.absolute().parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _opened_for_writing(path: Path, target: Path) -> Iterator[IO[bytes]]:
    with open(path, "xb") as file:
        if target.name.endswith((".gz", ".tgz")):
            with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, filename="", mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield file
        file.flush()
        os.fsync(file.fileno())


def sqlite_file(url: str) -> Path:
    return Path(str(make_url(url).database))


@contextmanager
def _snapshot(engine: Any, folder: Path, sqlite: bool) -> Iterator[tuple[Connection, list[Path]]]:
    """One moment of the database: a connection that sees it, and the files that hold it."""
    if sqlite:
        # one step in one read transaction: what is in the write-ahead log belongs to it, and writers are not kept
        # waiting
        path = folder / "finery.db"
        source, copy = sqlite3.connect(engine.url.database, timeout=30), sqlite3.connect(path)
        try:
            source.backup(copy, pages=-1)
            copy.execute("PRAGMA journal_mode=DELETE").close()  # one file, no log beside it
        finally:
            copy.close()
            source.close()
        path.chmod(0o600)
        other = create_engine(f"sqlite:///{path}")
        try:
            with other.connect() as connection:
                yield connection, [path]
        finally:
            other.dispose()
        return
    with (
        engine.connect().execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True) as connection,
        connection.begin(),
    ):
        yield connection, [_dumped(connection, table, folder) for table in tables_of(connection).sorted_tables]


def tables_of(connection: Connection) -> MetaData:
    """The tables as the database has them, whatever its schema."""
    metadata = MetaData()
    metadata.reflect(connection, only=lambda name, _: name != "alembic_version")
    return metadata


def _dumped(connection: Connection, table: Any, folder: Path) -> Path:
    """The rows of a table as lines of JSON."""
    path = folder / f"{table.name}.jsonl"
    with (
        open(path, "x", encoding="utf-8") as file,
        connection.execute(table.select(), execution_options={"yield_per": 1000}) as rows,
    ):
        for row in rows.mappings():
            file.write(json.dumps(dict(row)) + "\n")
    return path


def _named(connection: Connection, settings: Settings, manifest: Manifest) -> Iterator[Path]:
    """What the snapshot's rows name, and the keys and secrets beside it."""
    yield from (settings.home / name for name in KEYS if (settings.home / name).exists())
    if (settings.home / "secrets").is_dir():
        yield settings.home / "secrets"
    for row in connection.execute(select(tables.files)).mappings():
        file = file_of(row)
        paths = (
            [file_path(settings, file)]
            if file.state == READY
            else [part_path(settings, file), file_path(settings, file)]
        )
        existing = [path for path in paths if path.exists()]
        yield from existing or (paths[:1] if file.state == READY else ())
    for path in connection.execute(select(tables.models.c.path)).scalars():
        yield Path(path)
    for job in connection.execute(select(tables.jobs.c.id)).scalars():
        if (settings.jobs / job).is_dir():
            yield settings.jobs / job
    cache = stage_cache(settings)
    if "stages" not in manifest.without and cache.is_dir():
        yield cache


class ArchiveWriter:
    """Writes an archive, file by file, and its manifest."""

    def __init__(self, archive: IO[bytes], manifest: Manifest, scratch: Path) -> None:
        self.archive, self.manifest, self.scratch = archive, manifest, scratch
        self.linked: dict[tuple[int, int], str] = {}
        """(device, inode) of a file with several names -> the path under which it is in the archive."""
        self.taken: set[str] = set()

    def add_below(self, path: Path, home: Path) -> None:
        """A file or a folder of the home. Anything else, and what has gone, is listed."""
        if not path.is_relative_to(home):
            self.manifest.left_out.append(f"{path}: lies outside of the home")
            return
        if path.is_dir() and not path.is_symlink():
            for each in self._inside(path, home):
                self._take(each, home)
        else:
            self._take(path, home)

    def _inside(self, folder: Path, home: Path) -> list[Path]:
        """Every file below, the newest first: a mark that vouches for other files is read before them."""
        files: list[tuple[float, str]] = []
        waiting = [str(folder)]
        while waiting:
            try:
                entries = list(os.scandir(waiting.pop()))
            except OSError:
                continue  # gone: so is what it held
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if not self._left_out(PurePosixPath(os.path.relpath(entry.path, home))):
                        waiting.append(entry.path)
                    continue
                try:
                    files.append((-entry.stat(follow_symlinks=False).st_mtime, entry.path))
                except OSError:
                    self._gone(os.path.relpath(entry.path, home))
        if len(files) > MOST_OF_A_JOB and folder.parent == home / "jobs":
            self.manifest.left_out.append(
                f"{folder.relative_to(home)}: only the newest {MOST_OF_A_JOB} of {len(files)} files"
            )
            files = sorted(files)[:MOST_OF_A_JOB]
        return [Path(path) for _, path in sorted(files)]

    def _left_out(self, folder: PurePosixPath) -> bool:
        """Secrets of attempts never go; runs, checkpoints and job caches not when they were not wanted."""
        parts = folder.parts
        if parts[0] != "jobs" or len(parts) < 3:
            return False
        return (parts[2] in ("runs", "cache") and "runs" in self.manifest.without) or (
            parts[2] == "attempts" and parts[4:5] in (("secrets",), ("tmp",))
        )

    def _take(self, path: Path, home: Path) -> None:
        inner = str(path.relative_to(home))
        name = f"home/{inner}"
        if name in self.taken:
            return
        try:
            check_path(name)
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                self._link(path, name, home)
                return
            if not stat.S_ISREG(status.st_mode):
                return
            top = inner.split("/")[0]
            if top == "jobs" and status.st_size > HOLES and status.st_blocks * 512 < status.st_size // 2:
                raise BadArchive("it is made of holes")
            changes = top == "jobs" or (top == "cache" and ".partial" in inner) or inner.endswith(".part")
            with opened_below(home, inner) as file:
                self.add(file, name, copied=changes)
        except FileNotFoundError:
            self._gone(inner)
        except (OSError, BadArchive) as error:
            self.manifest.left_out.append(
                f"{ascii(inner)[1:-1]}: {error.strerror if isinstance(error, OSError) else error}"
            )

    def _gone(self, inner: str) -> None:
        """Note what is no longer there; a restore leaves out the folder that is of use only as a whole."""
        if inner.isprintable():
            self.manifest.vanished.append(inner)
        else:
            self.manifest.left_out.append(f"{ascii(inner)[1:-1]}: was gone")

    def _link(self, path: Path, name: str, home: Path) -> None:
        """A link is kept when it leads to a stage or into a job's folder; it is never followed."""
        target = os.path.relpath(os.path.normpath(path.parent / os.readlink(path)), home)
        if target.split("/")[0] in CHANGING and "/" in target:
            check_path(f"home/{target}")
            self.manifest.links.append(ArchiveLink(path=name, to=f"home/{target}"))
            self.taken.add(name)

    def add(self, file: IO[bytes], name: str, copied: bool = False) -> None:
        """An open file. One that may change is `copied` first, because a tar tells the size before the content."""
        status = os.fstat(file.fileno())
        key = (status.st_dev, status.st_ino)
        if status.st_nlink > 1 and key in self.linked:
            self.manifest.members.append(ArchiveMember(path=name, same_as=self.linked[key]))
        elif copied:
            with tempfile.SpooledTemporaryFile(max_size=8 << 20, dir=str(self.scratch)) as spool:
                left = status.st_size  # what is appended while it is read comes too late
                while left and (piece := file.read(min(PIECE, left))):
                    spool.write(piece)
                    left -= len(piece)
                size = spool.tell()
                spool.seek(0)
                self._write(name, cast("IO[bytes]", spool), size)
        else:
            self._write(name, file, status.st_size)
        if status.st_nlink > 1:
            self.linked.setdefault(key, name)
        self.taken.add(name)

    def _write(self, name: str, content: IO[bytes], size: int) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, 0o600, int(time.time())
        try:
            header = info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
        except ValueError:  # a name of more than 255 bytes, or more than 8 GB
            info.name = f"long/{len(self.manifest.members):08d}"
            header = info.tobuf(tarfile.GNU_FORMAT)
        self.archive.write(header)
        digest, left = hashlib.sha256(), size
        while left:
            piece = content.read(min(PIECE, left))
            if not piece:
                raise CommandError(f"{name} became shorter while it was read; it should never change: look at the disk")
            digest.update(piece)
            self.archive.write(piece)
            left -= len(piece)
        self.archive.write(b"\0" * (-size % tarfile.BLOCKSIZE))
        self.manifest.members.append(ArchiveMember(path=name, member=info.name, bytes=size, sha256=digest.hexdigest()))

    def close(self) -> None:
        """Write the manifest, and the end."""
        text = self.manifest.model_dump_json(by_alias=True).encode()
        info = tarfile.TarInfo(MANIFEST)
        info.size, info.mode = len(text), 0o600
        self.archive.write(
            info.tobuf(tarfile.USTAR_FORMAT)
            + text
            + b"\0" * (-len(text) % tarfile.BLOCKSIZE)
            + b"\0" * (2 * tarfile.BLOCKSIZE)
        )


def check_path(path: str) -> None:
    """Refuse a path that leads out of the home, or to what a backup never holds. Raises BadArchive."""
    parts = path.split("/")
    strange = (
        any(part in ("", ".", "..") or len(part) > 255 for part in parts)
        or len(path) > 4096
        or not path.isprintable()
        or "\\" in path
    )
    ours = (parts[0] == "database" and len(parts) == 2) or (
        parts[0] == "home" and (path[5:] in KEYS or (len(parts) > 2 and parts[1] in FOLDERS))
    )
    if strange or not ours:
        raise BadArchive(f"the archive names {path[:100]!r}, which is no place of a backup")


@contextmanager
def opened_below(home: Path, inner: str) -> Iterator[IO[bytes]]:
    """A regular file below the home, reached through no link at all: whoever writes there may exchange a folder
    for one."""
    *folders, name = inner.split("/")
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        file = open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor), "rb")  # noqa: SIM115
    finally:
        os.close(descriptor)
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BadArchive("it is no regular file")
        yield file


def _size(manifest: Manifest) -> str:
    return f"{sum(member.bytes for member in manifest.members) / 1e6:,.1f} MB"


def report(manifest: Manifest, place: Path, as_json: bool, sentence: str) -> int:
    if as_json:
        report = {
            "path": str(place),
            "files": len(manifest.members),
            "bytes": sum(member.bytes for member in manifest.members),
            "made": manifest.made,
        }
        print(
            json.dumps(
                {
                    **report,
                    "schema": manifest.schema_,
                    "without": manifest.without,
                    "vanished": manifest.vanished,
                    "left_out": manifest.left_out,
                },
                ensure_ascii=False,
            )
        )
        return EXIT_DONE
    print(sentence)
    for path in manifest.vanished[:20]:
        print(f"gone before it could be read: {path}", file=sys.stderr)
    for sentence in manifest.left_out[:20]:
        print(f"left out: {sentence}", file=sys.stderr)
    return EXIT_DONE
