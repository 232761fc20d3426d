"""Room on the disk: a reserve that new work may not touch, and the sweep that deletes what is not kept for ever.

SQLite needs some kilobytes to open a database. The ballast is a file of zeros in the home, given up when the server
starts on a full disk, and made again when there is room: whoever frees space finds a service that answers.

The sweep deletes uploads that nobody finished, jobs whose time after their end is over, deleted models whose grace
period is over, and secrets of attempts that have ended. An upload that nobody added to for `upload_seconds` is deleted,
row and bytes. The age of an upload is that of the last byte, by the part file's time of change, or of the announcement
where no byte came. A chunk that is on its way holds the part's lock and is left alone. A part whose row is gone,
because the service was killed between the two, goes likewise.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from service.executors.records import SECRETS, delete_folder, delete_secrets
from service.settings import Settings
from service.store.errors import Conflict, NotFound
from service.store.files import UPLOADING, File
from service.store.store import Store
from service.uploads import part_path

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
    return (
        f"The server's disk has {left >> 20} MB left, less than its reserve of {reserve >> 20} MB; an admin must "
        "free some space: delete jobs that have ended, files or models."
    )


def drop_ballast(home: Path, least: int = BALLAST_BYTES) -> bool:
    """Give the ballast up where the disk is full; returns whether it was."""
    path = home / BALLAST
    if free(home) >= least or not path.is_file():
        return False
    path.unlink()
    log.warning(
        "the disk of %s is full: %d MB that were kept for this are given up; free some space", home, BALLAST_BYTES >> 20
    )
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


PAGE = 500
PART = ".part"
DELETED = ".deleted"
"""In the folder of a job that is being deleted, and at the end of the name of a model's folder that is."""


def sweep(store: Store, settings: Settings, clock: Callable[[], float] = time.time) -> int:
    """Delete every upload that is older than the settings allow; returns how many there were. Again deletes
    nothing more."""
    oldest = clock() - settings.upload_seconds
    gone = 0
    after = None
    while page := store.files(None, state=UPLOADING, after=after, limit=PAGE, newest_first=False):
        after = page[-1].id
        gone += sum(_forget(store, settings, file, oldest) for file in page if file.created < oldest)
    gone += sum(_forget_part(store, path, oldest) for path in settings.files.glob(f"*/*{PART}"))
    if gone:
        log.info("%d uploads that nobody finished are deleted", gone)
    sweep_secrets(store, settings)
    return gone


def sweep_secrets(store: Store, settings: Settings) -> int:
    """Delete the secrets of attempts that have ended, whose executor or server was killed before it did so;
    returns how many had some."""
    places = [*settings.jobs.glob(f"*/attempts/*/{SECRETS}"), *settings.jobs.glob(f"*/attempts/*/host-*/{SECRETS}")]
    records = {place.parent if place.parent.parent.name == "attempts" else place.parent.parent for place in places}
    live = {attempt.id for attempt, _ in store.live_attempts()} if records else set()
    ended = [record for record in records if record.name not in live]
    left = [record for record in ended if not delete_secrets(record, parts=True)]
    if left:
        log.warning("secrets of %d attempts that have ended cannot be deleted, such as %s", len(left), left[0])
    return len(ended) - len(left)


def sweep_jobs(store: Store, settings: Settings, clock: Callable[[], float] = time.time) -> int:
    """Delete every job whose time after its end is over; returns how many. One that another job needs stays until
    that has ended."""
    gone = 0
    for identifier in store.outlived(clock(), settings.ttl_seconds_after_finished, PAGE):
        with suppress(Conflict, NotFound):
            forget_job(store, settings, identifier)
            gone += 1
    if gone:
        log.info("%d jobs are deleted, whose time after their end is over", gone)
    return gone


def sweep_models(store: Store, settings: Settings, clock: Callable[[], float] = time.time) -> int:
    """Delete the files of every deleted version whose grace period is over; returns how many there were. The row goes
    first, so that nothing names a folder that is half gone; what a killed server left is found by its mark."""
    gone = 0
    root = settings.models.resolve()
    for marker in settings.models.glob(f"*/*/.*{DELETED}"):
        shutil.rmtree(marker, ignore_errors=True)
    for model in store.outlived_models(clock(), settings.model_grace_days, PAGE):
        if not store.purge_model(model.id, model.deleted):
            continue  # it was restored meanwhile
        folder = Path(model.path).resolve()
        if folder.is_relative_to(root) and folder != root:
            marked = folder.with_name(f".{folder.name}{DELETED}")
            with suppress(OSError):
                folder.rename(marked)
                delete_folder(marked)
        gone += 1
    if gone:
        log.info("%d deleted versions of models are gone for good", gone)
    return gone


def sweep_folders(store: Store, settings: Settings) -> int:
    """Finish what a killed server began: delete the folders of jobs that were being deleted and have no row any
    more."""
    gone = 0
    for marker in settings.jobs.glob(f"job-*/{DELETED}"):
        try:
            store.job(marker.parent.name)
        except NotFound:
            delete_folder(marker.parent)
            gone += 1
    return gone


def forget_job(store: Store, settings: Settings, job_id: str, project: str | None = None) -> None:
    """Delete a job that has ended: its rows first, so that nothing names a folder that is gone. Raises NotFound,
    or Conflict."""
    job = store.job(job_id, project)
    folder = settings.jobs / job.id
    if job.over and folder.is_dir():
        (folder / DELETED).touch()
    store.delete_job(job_id, project)
    delete_folder(folder)


def _forget(store: Store, settings: Settings, file: File, oldest: float) -> bool:
    part = part_path(settings, file)
    try:
        descriptor = os.open(part, os.O_RDWR)
    except FileNotFoundError:
        return store.delete_unfinished(file.id)
    try:
        if os.fstat(descriptor).st_mtime >= oldest or not _locked(descriptor):
            return False
        if not store.delete_unfinished(file.id):
            return False
        part.unlink(missing_ok=True)
        return True
    finally:
        os.close(descriptor)


def _forget_part(store: Store, path: Path, oldest: float) -> bool:
    """A part that no row knows, or whose row is being looked at above."""
    try:
        if path.stat().st_mtime >= oldest:
            return False
        store.file(path.name.partition(".")[0])
    except NotFound:
        path.unlink(missing_ok=True)
        return True
    except FileNotFoundError:
        return False
    return False


def _locked(descriptor: int) -> bool:
    """Whether no chunk is on its way; none can come until the file is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
