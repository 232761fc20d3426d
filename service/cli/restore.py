"""`finery restore`: a home, and a database, made of what `finery backup` wrote.

The archive is read twice: once to check every name and checksum, writing nothing; once to write, into a private
folder beside the home that takes the home's name in one rename at the end. Headers are read one block at a time and
only regular files are known, so that links, devices and extended headers of a hostile tar are refused before anything
is made of them. An archive is trusted for what it says, like the service itself: whoever can write a whole new one
can write an admin's token into it.

What ran when the backup was made is lost here and tried again. Every fencing token jumps far ahead, so that a server
which goes on with the old tokens is refused whatever it writes.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar, cast

from pydantic import ValidationError
from sqlalchemy import Connection, create_engine, delete, select, update
from sqlalchemy.exc import SQLAlchemyError

from pipelines.core.errors import CommandError
from service.cli.backup import (
    CHANGING,
    DATABASE,
    FORMAT,
    MANIFEST,
    PIECE,
    BadArchive,
    Manifest,
    check_path,
    note_in_trail,
    report,
    sqlite_file,
    tables_of,
)
from service.cli.serve import LOCK
from service.jobs.states import STOPPING, TERMINAL, Ending, Reason
from service.scheduler.retries import ending_of, losses_in_a_row
from service.settings import Settings, read_settings
from service.store import tables
from service.store.database import Transaction
from service.store.store import FOLDER, NEWEST, Store, alone, current, upgrade_within

MOST_MANIFEST = 512 << 20
MOST_MEMBERS = 5_000_000
FENCES = 1_000_000
"""Added to every fencing token."""
Result = TypeVar("Result")


def restore(archive: Path, home: Path | None, database_url: str | None, as_json: bool) -> int:
    """Make a home, and a database, of an archive. Returns the exit code. Raises CommandError; then nothing was put
    in place."""
    settings = read_settings(home=home, database_url=database_url)
    _refuse_used(settings.home)
    try:
        manifest = examine(archive, settings.home)
        settings.home.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{settings.home.name}.restoring-", dir=settings.home.parent))
        try:
            _extract(archive, manifest, staging, settings.home)
            _fill(manifest, staging, settings)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except SQLAlchemyError as error:
        raise BadArchive(
            f"the database could not be restored: {str(getattr(error, 'orig', error)).strip().splitlines()[0]}"
        ) from None
    except OSError as error:
        raise CommandError(f"{error.filename or settings.home} cannot be restored: {error.strerror or error}") from None
    return report(
        manifest,
        settings.home,
        as_json,
        f"{settings.home}  {len(manifest.members)} files of {manifest.made}. Go on with: finery serve --home "
        f"{settings.home}",
    )


def _refuse_used(home: Path) -> None:
    if not home.exists():
        return
    if not home.is_dir() or any(home.iterdir()):
        try:
            with open(home / LOCK, encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"{home} is in use by a server: restore to another folder") from None
        except OSError:
            pass
        raise CommandError(f"{home} is not empty: restore to a folder that is, or is not there yet")


@contextmanager
def _opened_for_reading(path: Path) -> Iterator[IO[bytes]]:
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        yield cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if packed else file


def _members(file: IO[bytes]) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Name, size and content of each file of a tar. Raises BadArchive for anything that is no regular file.

    Headers are read one block at a time: what other readers of tar do for extended headers, devices and links is not
    done at all.
    """
    for _ in range(MOST_MEMBERS):
        block = _exactly(file, tarfile.BLOCKSIZE)
        if block.count(0) == tarfile.BLOCKSIZE:
            return
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError, ValueError):
            raise BadArchive("the archive is damaged, or no backup of finery") from None
        if info.type != tarfile.REGTYPE or info.size < 0 or not info.name:
            raise BadArchive(
                f"the archive holds {info.name[:100]!r}, which is no regular file: finery writes none such"
            )
        left = [info.size]
        yield info.name, info.size, _content(file, left)
        for _ in _content(file, left):
            pass
        _exactly(file, -info.size % tarfile.BLOCKSIZE)
    raise BadArchive(f"the archive holds more than {MOST_MEMBERS} files")


def _exactly(file: IO[bytes], size: int) -> bytes:
    try:
        content = file.read(size)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise BadArchive("the archive is damaged: its compression does not end well") from None
    if len(content) != size:
        raise BadArchive("the archive is not whole: it ends in the middle")
    return content


def _content(file: IO[bytes], left: list[int]) -> Iterator[bytes]:
    while left[0]:
        piece = _exactly(file, min(PIECE, left[0]))
        left[0] -= len(piece)
        yield piece


def examine(archive: Path, home: Path) -> Manifest:
    """Read everything, compare everything, write nothing. Raises BadArchive."""
    place = home
    while not place.exists():
        place = place.parent
    room = shutil.disk_usage(place).free
    checksums: dict[str, tuple[int, str]] = {}
    text, total = None, 0
    with _opened_for_reading(archive) as file:
        for name, size, content in _members(file):
            if text is not None or name in checksums:
                raise BadArchive(f"the archive holds {name[:100]!r} twice, or something after its manifest")
            if name == MANIFEST:
                if size > MOST_MANIFEST:
                    raise BadArchive(f"the archive's manifest has {size} bytes, at most {MOST_MANIFEST} are read")
                text = b"".join(content)
                continue
            total += size
            if total > room:
                raise BadArchive(f"the archive needs more than the {room} bytes that are free for {home}")
            digest = hashlib.sha256()
            for piece in content:
                digest.update(piece)
            checksums[name] = (size, digest.hexdigest())
    if text is None:
        raise BadArchive("the archive has no manifest: it is not whole, or no backup of finery")
    try:
        manifest = Manifest.model_validate_json(text)
    except (ValidationError, RecursionError, UnicodeDecodeError):
        raise BadArchive(
            "the archive's manifest cannot be read: it is damaged, or of a later version of finery"
        ) from None
    if manifest.format != FORMAT:
        raise BadArchive(f"the archive has format {manifest.format}, this version of finery reads {FORMAT}")
    if not any((FOLDER / "versions").glob(f"{manifest.schema_}_*.py")):
        raise BadArchive(
            f"the archive has schema {manifest.schema_}, this version of finery knows up to {NEWEST}; install the "
            "version that wrote it, or a later one"
        )
    _check(manifest, checksums)
    return manifest


def _check(manifest: Manifest, checksums: dict[str, tuple[int, str]]) -> None:
    """Every file is listed once, with its checksum, under a path that is safe; nothing else is there. Raises
    Refused."""
    own = [member for member in manifest.members if not member.same_as]
    listed = {member.member: (member.bytes, member.sha256) for member in own}
    if len(listed) != len(own) or set(listed) != set(checksums):
        raise BadArchive("the archive does not hold what its manifest lists")
    for name, (size, digest) in checksums.items():
        if listed[name] != (size, digest):
            raise BadArchive(f"{name[:100]!r} is damaged: its checksum is not the one that was written")
    paths: set[str] = set()
    for member in manifest.members:
        check_path(member.path)
        if member.path in paths or (member.same_as and member.same_as not in paths):
            raise BadArchive(f"the manifest names {member.path[:100]!r} twice, or a copy before what it is a copy of")
        paths.add(member.path)
    for link in manifest.links:
        check_path(link.path)
        check_path(link.to)
        if link.path in paths or link.to.split("/")[1] not in CHANGING or link.path.split("/")[1] not in CHANGING:
            raise BadArchive(f"the archive has a link {link.path[:100]!r} that finery would not make")
        paths.add(link.path)
    folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    if clash := paths & folders:
        raise BadArchive(f"the archive has {sorted(clash)[0][:100]!r} as a file and as a folder")
    if manifest.database == "sqlite" and DATABASE not in paths:
        raise BadArchive("the archive holds no database")


def _extract(archive: Path, manifest: Manifest, staging: Path, home: Path) -> None:
    """Write the files below `staging`, where nobody else writes; compare them again, because the archive may have
    changed."""
    torn = tuple(
        f"home/{_unit(path)}/" for path in manifest.vanished if path.split("/")[0] in CHANGING and path.count("/") > 1
    )
    wanted = {member.member: member for member in manifest.members if not member.same_as}
    written = set()
    with _opened_for_reading(archive) as file:
        for name, size, content in _members(file):
            if name == MANIFEST:
                break
            member = wanted.get(name)
            if member is None or size != member.bytes:
                raise BadArchive("the archive changed while it was read")
            path = _place(staging, member.path)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            digest = hashlib.sha256()
            with open(descriptor, "wb") as output:
                for piece in content:
                    digest.update(piece)
                    output.write(piece)
            if digest.hexdigest() != member.sha256:
                raise BadArchive("the archive changed while it was read")
            written.add(member.path)
    if written != {member.path for member in wanted.values()}:
        raise BadArchive("the archive changed while it was read")
    for member in manifest.members:
        if member.same_as:
            os.link(staging / member.same_as, _place(staging, member.path))
    for member in manifest.members:
        if torn and member.path.startswith(torn):
            (staging / member.path).unlink()
    for link in manifest.links:  # last: nothing is written through one
        if (staging / link.to).exists():
            _place(staging, link.path).symlink_to(home / link.to.removeprefix("home/"))


def _unit(path: str) -> PurePosixPath:
    """The folder that is only of use as a whole: a checkpoint, else the one that the file lay in."""
    parents = list(PurePosixPath(path).parents)
    return next((parent for parent in parents if parent.name.startswith("checkpoint-")), parents[0])


def _place(staging: Path, name: str) -> Path:
    """Where a file goes; its folders are the owner's alone."""
    path = staging / name
    missing = []
    parent = path.parent
    while not parent.is_dir():
        missing.append(parent)
        parent = parent.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700)
    return path


def _fill(manifest: Manifest, staging: Path, settings: Settings) -> None:
    """Put the rows into the database and the folder into its place, both or neither."""
    new = staging / "home"  # what becomes the home
    new.mkdir(exist_ok=True, mode=0o700)
    to_sqlite = settings.url.startswith("sqlite")
    if to_sqlite and sqlite_file(settings.url) != settings.home / "finery.db":
        raise CommandError(
            "--database-url names an SQLite file outside of the home: leave it out, a restored one lies in the home"
        )
    direct = to_sqlite and manifest.database == "sqlite"
    if direct:
        os.rename(staging / DATABASE, new / "finery.db")
        _refuse_broken(new / "finery.db")
    store = Store(f"sqlite:///{new / 'finery.db'}" if to_sqlite else settings.url)
    try:
        if direct and current(store) != manifest.schema_:
            raise BadArchive(
                f"the archive's database has schema {current(store)}, its manifest says {manifest.schema_}"
            )
        with alone(store) as connection:
            if not direct:
                if tables_of(connection).tables:
                    raise CommandError("the database is not empty: name one that is with --database-url")
                upgrade_within(connection, manifest.schema_)
                _insert(connection, staging / "database", manifest)
            upgrade_within(connection)
            _settle(connection, manifest, new, settings)
            if not to_sqlite:
                os.sync()
                # the rows are written a moment later; should that fail, the folder goes again
                os.rename(new, settings.home)
                new = settings.home
    except BaseException:
        if new == settings.home:
            shutil.rmtree(settings.home, ignore_errors=True)
        raise
    finally:
        store.close()
    if to_sqlite:
        for left in new.glob("finery.db.migrating"):
            left.unlink()
        os.sync()
        os.rename(new, settings.home)


def _refuse_broken(path: Path) -> None:
    try:
        with sqlite3.connect(path) as connection:
            result = connection.execute("PRAGMA quick_check(1)").fetchone()
        connection.close()
    except sqlite3.DatabaseError as error:
        result = (str(error),)
    if result != ("ok",):
        raise BadArchive(f"the archive's database is damaged: {result[0]}")


def _insert(connection: Connection, folder: Path, manifest: Manifest) -> None:
    """Rows of the archive, table by table, parents first."""
    tables = tables_of(connection)
    if manifest.database == "sqlite":
        source = create_engine(f"sqlite:///{folder / 'finery.db'}")
        try:
            _refuse_broken(folder / "finery.db")
            with source.connect() as reading:
                archived = tables_of(reading)
                for table in tables.sorted_tables:
                    if table.name in archived.tables:
                        _rows_into(
                            connection,
                            table,
                            (dict(row) for row in reading.execute(archived.tables[table.name].select()).mappings()),
                        )
        finally:
            source.dispose()
        return
    unknown = {path.stem for path in folder.glob("*")} - set(tables.tables)
    if unknown:
        raise BadArchive(
            f"the archive has rows of '{sorted(unknown)[0][:60]}', a table that schema {manifest.schema_} does not have"
        )
    for table in tables.sorted_tables:
        path = folder / f"{table.name}.jsonl"
        if path.is_file():
            with open(path, encoding="utf-8") as file:
                _rows_into(connection, table, (json.loads(line) for line in file))


def _rows_into(connection: Connection, table: Any, rows: Iterable[dict[str, Any]]) -> None:
    names = {column.name for column in table.columns}
    batch: list[dict[str, Any]] = []
    for row in rows:
        if set(row) != names:
            raise BadArchive(f"a row of '{table.name}' has other columns than its table")
        batch.append(row)
        if len(batch) == 500:
            connection.execute(table.insert(), batch)
            batch = []
    if batch:
        connection.execute(table.insert(), batch)


def _settle(connection: Connection, manifest: Manifest, home: Path, settings: Settings) -> None:
    """Make the rows true here: what ran is lost, no host is known to live, no old lease or token counts, paths are
    those of this home."""
    transaction = Transaction(connection)

    class Within(Store):
        """The store's functions, in the transaction that is open."""

        def __init__(self) -> None:
            pass

        def read(self, work: Callable[[Transaction], Result]) -> Result:
            return work(transaction)

        def write(self, work: Callable[[Transaction], Result], *, repeatable: bool = True) -> Result:
            return work(transaction)

    store = Within()
    why = "the service was restored from a backup"
    for attempt, job in store.live_attempts():
        fencing = attempt.fencing if job.state in STOPPING else store.fence(attempt.id, message=why)
        losses = losses_in_a_row(store.attempts(job.id))
        ending: Ending = ending_of(
            store.job(job.id), exit_code=None, reason=Reason.NODE_LOST, message=why, now=time.time(), losses=losses
        )
        store.end_attempt(attempt.id, fencing, ending)
    connection.execute(
        update(tables.leases).values(holder="", expires=0.0, attempt=None, fencing=tables.leases.c.fencing + FENCES)
    )
    connection.execute(update(tables.hosts).values(state="down"))
    connection.execute(update(tables.gpu_slots).values(attempt=None))
    connection.execute(delete(tables.disk_usage))  # what was restored is measured anew
    moved = str(settings.home) != manifest.home
    for row in connection.execute(select(tables.models.c.id, tables.models.c.path)).all() if moved else ():
        if row.path.startswith(f"{manifest.home}/"):
            path = f"{settings.home}{row.path.removeprefix(manifest.home)}"
            connection.execute(update(tables.models).where(tables.models.c.id == row.id).values(path=path))
    waiting = select(tables.jobs.c.id).where(tables.jobs.c.state.not_in([str(state) for state in TERMINAL]))
    for job_id in connection.execute(waiting).scalars().all():
        runs = home / "jobs" / job_id / "runs"
        if moved:
            shutil.rmtree(runs, ignore_errors=True)  # its recipe names folders of the other home: it begins anew
        if not runs.is_dir():
            connection.execute(
                update(tables.attempts).where(tables.attempts.c.job == job_id).values(ingested=0, offset=0)
            )
    note_in_trail(store, "backup.restore", str(settings.home), made=manifest.made)
