"""The errors of the store.

FineryError
├── NotFound        nothing of that id, or it belongs to another project
├── Conflict        the request contradicts what is already there
├── QuotaExceeded   the project's limit is reached
│   └── DiskQuotaExceeded   it keeps as much on the disk as it may
├── TooLarge        a file, or the project's files together, would be larger than allowed
├── Fenced          the attempt was replaced by a later one and may write nothing any more
└── Unavailable     the database did not answer; whether the last change was written is unknown
    └── NoSpace     its disk is full; the change was not written
"""

from __future__ import annotations

from pipelines.core.errors import FineryError


class NotFound(FineryError):
    """Nothing of that id in this project."""

    reason = "not_found"

    def __init__(self, kind: str, identifier: str, known: str = "") -> None:
        """`known` says what there is instead."""
        self.kind = kind
        self.identifier = identifier
        super().__init__(f"there is no {kind} '{identifier}'" + (f"; {known}" if known else ""))


class Conflict(FineryError):
    """The request contradicts what is already there."""

    reason = "conflict"


class QuotaExceeded(FineryError):
    """The project's limit is reached."""

    reason = "quota_exceeded"


class DiskQuotaExceeded(QuotaExceeded):
    """The project keeps as much on the disk as it may."""

    reason = "disk_quota"


class TooLarge(FineryError):
    """The file, or the project's files together, would be larger than allowed."""

    reason = "too_large"


class Fenced(FineryError):
    """The attempt was replaced by a later one and may write nothing any more."""

    reason = "fenced"

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt
        super().__init__(f"attempt '{attempt}' was replaced by a later one and may write nothing any more")


class Unavailable(FineryError):
    """The database did not answer; whether the last change was written is unknown."""

    reason = "unavailable"


class NoSpace(Unavailable):
    """The database's disk is full; the change was not written."""

    reason = "disk_full"
