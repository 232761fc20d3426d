"""Uploaded files in the store; their bytes lie under the service's home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import RowMapping, Select, delete, func, insert, select, update

from service.jobs.job import new_id
from service.store import tables
from service.store.audit import note
from service.store.database import Database, Transaction
from service.store.disk_usage import refuse_full, usage_within
from service.store.errors import Conflict, NotFound, TooLarge
from service.store.projects import Project, known_project
from service.store.tables import now

files = tables.files
UPLOADING, READY = "uploading", "ready"


@dataclass(frozen=True)
class File:
    """A file of a project."""

    id: str
    project: str
    filename: str
    purpose: str
    state: str
    """`uploading` or `ready`."""
    bytes: int | None = None
    """Its size; while it is uploading, the size that was announced."""
    sha256: str | None = None
    """Likewise: of the whole file, or as announced."""
    offset: int = 0
    """Bytes that have arrived."""
    reserved: int = 0
    """Bytes that count for the project: all of a complete or announced file, else those that may be on their way."""
    created_by: str = ""
    created: float = 0.0
    completed: float | None = None
    openai: Mapping[str, Any] = field(default_factory=dict)


def file_of(row: RowMapping) -> File:
    return File(**row)


class FileQueries(Database):
    """The part of the store that holds files."""

    def create_file(
        self,
        project: str,
        filename: str,
        purpose: str,
        *,
        bytes: int | None = None,
        sha256: str | None = None,
        created_by: str = "",
        most: int | None = None,
    ) -> File:
        """Begin an upload. Raises TooLarge when the project's files would be more than `most` bytes with the
        announced ones, DiskQuotaExceeded when all that it keeps would be more than it may."""
        made = File(
            new_id("file"), project, filename, purpose, UPLOADING, bytes, sha256, 0, bytes or 0, created_by, now()
        )

        def work(transaction: Transaction) -> File:
            owner = known_project(transaction, project, lock=True)
            if transaction.execute(select(files.c.id).where(files.c.id == made.id)).first() is None:
                _refuse_file(transaction, owner, bytes or 0, most)
                transaction.execute(insert(files).values(**vars(made)))
                note(transaction, "file.create", "file", made.id, project, filename=filename, purpose=purpose)
            return made

        return self.write(work)

    def refuse_file(self, project: str, least: int, most: int) -> None:
        """Raise what `create_file` would for a file of at least so many bytes."""
        self.write(lambda transaction: _refuse_file(transaction, known_project(transaction, project), least, most))

    def reserve_file(self, file_id: str, least: int, wanted: int, most: int) -> int:
        """Let a file grow to `wanted` bytes in all, or to `least` where no more fits; returns how far it may grow.

        The project's files together never come to more than `most` bytes, whoever else reserves at the same time, from
        this server or another one. Raises TooLarge, DiskQuotaExceeded, or Conflict once the file is complete.
        """

        def work(transaction: Transaction) -> int:
            file = file_of(self._row(transaction, file_id, None))
            owner = known_project(transaction, file.project, lock=True)  # one reservation at a time in a project
            file = file_of(self._row(transaction, file_id, None))
            if file.state != UPLOADING:
                raise Conflict(f"file '{file_id}' is complete")
            if file.reserved >= least:
                return file.reserved
            used = _reserved(transaction, file.project)
            _check_room(used, least - file.reserved, most)
            left = most - used
            if owner.max_bytes is not None:
                refuse_full(transaction, owner, least - file.reserved)
                left = min(left, owner.max_bytes - usage_within(transaction, owner).total)
            granted = min(max(least, wanted), file.reserved + left)
            transaction.execute(update(files).where(files.c.id == file_id).values(reserved=granted))
            return granted

        return self.write(work)

    def file(self, file_id: str, project: str | None = None) -> File:
        """One file. Raises NotFound, also for another project's."""
        return self.read(lambda transaction: file_of(self._row(transaction, file_id, project)))

    @staticmethod
    def _row(transaction: Transaction, file_id: str, project: str | None) -> RowMapping:
        row = transaction.execute(of_files(project).where(files.c.id == file_id)).mappings().first()
        if row is None:
            raise NotFound("file", file_id)
        return row

    def _changed(self, file_id: str, project: str | None, change: Any) -> File:
        def work(transaction: Transaction) -> File:
            before = file_of(self._row(transaction, file_id, project))
            values = change(before)
            transaction.execute(update(files).where(files.c.id == file_id).values(**values))
            changed = file_of(self._row(transaction, file_id, project))
            if before.state != changed.state:
                note(
                    transaction,
                    "file.complete",
                    "file",
                    file_id,
                    changed.project,
                    filename=changed.filename,
                    bytes=changed.bytes,
                    sha256=changed.sha256,
                )
            return changed

        return self.write(work)

    def advance_file(self, file_id: str, offset: int, project: str | None = None) -> File:
        """So many bytes of it lie on the disk; what was reserved beyond them is free again. Raises Conflict once
        it is complete."""

        def change(file: File) -> dict[str, Any]:
            if file.state != UPLOADING:
                raise Conflict(f"file '{file_id}' is complete")
            return {"offset": offset, "reserved": file.bytes if file.bytes is not None else offset}

        return self._changed(file_id, project, change)

    def complete_file(self, file_id: str, sha256: str, bytes: int, project: str | None = None) -> File:
        """All of it has arrived. Raises Conflict when size or checksum are not the announced ones."""

        def change(file: File) -> dict[str, Any]:
            if file.sha256 not in (None, sha256) or file.bytes not in (None, bytes):
                raise Conflict(
                    f"what arrived of file '{file_id}' has {bytes} bytes and SHA-256 {sha256}; announced were "
                    f"{file.bytes} and {file.sha256}"
                )
            return {
                "state": READY,
                "sha256": sha256,
                "bytes": bytes,
                "offset": bytes,
                "reserved": bytes,
                "completed": file.completed or now(),
            }

        return self._changed(file_id, project, change)

    def update_file_openai(
        self, file_id: str, changes: Mapping[str, object], project: str | None = None, purpose: str | None = None
    ) -> File:
        """Merge what the OpenAI surface keeps beside a file, and say what it is for."""
        return self._changed(
            file_id,
            project,
            lambda file: {"openai": {**file.openai, **changes}, "purpose": purpose or file.purpose},
        )

    def files(
        self,
        project: str | None,
        *,
        purpose: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = True,
    ) -> list[File]:
        """A page of files."""
        query = of_files(project).order_by(files.c.id.desc() if newest_first else files.c.id).limit(limit)
        if purpose is not None:
            query = query.where(files.c.purpose == purpose)
        if state is not None:
            query = query.where(files.c.state == state)
        if after is not None:
            query = query.where(files.c.id < after if newest_first else files.c.id > after)
        return self.read(lambda transaction: [file_of(row) for row in transaction.execute(query).mappings()])

    def find_file(self, project: str, sha256: str) -> File | None:
        """A complete file of the project with this content, if there is one."""
        query = of_files(project).where(files.c.sha256 == sha256, files.c.state == READY).order_by(files.c.id).limit(1)
        row = self.read(lambda transaction: transaction.execute(query).mappings().first())
        return None if row is None else file_of(row)

    def delete_file(self, file_id: str, project: str | None = None) -> File:
        """Forget a file and return what it was; its bytes are the caller's to remove. Raises NotFound."""

        def work(transaction: Transaction) -> File:
            row = self._row(transaction, file_id, project)
            transaction.execute(delete(files).where(files.c.id == file_id))
            note(
                transaction,
                "file.delete",
                "file",
                file_id,
                row["project"],
                filename=row["filename"],
                sha256=row["sha256"],
            )
            return file_of(row)

        return self.write(work, repeatable=False)

    def delete_unfinished(self, file_id: str) -> bool:
        """Forget a file whose upload was never completed; False where it is complete by now, or gone."""

        def work(transaction: Transaction) -> bool:
            unfinished = (files.c.id == file_id) & (files.c.state == UPLOADING)
            row = transaction.execute(select(files.c.project, files.c.filename).where(unfinished)).first()
            done = bool(transaction.execute(delete(files).where(unfinished)).rowcount)
            if done and row is not None:
                note(transaction, "file.delete", "file", file_id, row.project, filename=row.filename, unfinished=True)
            return done

        return self.write(work, repeatable=False)


def _refuse_file(transaction: Transaction, owner: Project, size: int, most: int | None) -> None:
    refuse_full(transaction, owner, size)
    if size and most is not None:
        _check_room(_reserved(transaction, owner.name), size, most)


def _reserved(transaction: Transaction, project: str) -> int:
    counted = func.coalesce(func.sum(files.c.reserved), 0)
    return int(transaction.execute(select(counted).where(files.c.project == project)).scalar_one())


def _check_room(used: int, size: int, most: int) -> None:
    """Raise TooLarge when so many bytes more would be too many. `used` is asked for once: others give back
    meanwhile."""
    if used + size > most:
        raise TooLarge(f"the project has {used} bytes of files, at most {most} are allowed; delete some first")


def of_files(project: str | None) -> Select[Any]:
    """All files of a project; None is an admin, who sees all."""
    query = select(files)
    return query if project is None else query.where(files.c.project == project)
