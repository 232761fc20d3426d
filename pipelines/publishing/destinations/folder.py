"""Publishing to a folder: complete or not there at all.

The files are put into a hidden sibling, compared with their checksums, and then take the name in one step. An older
publication keeps its place until that moment: on Linux the two folders are exchanged by renameat2(2) with
RENAME_EXCHANGE; where the file system cannot do that, two renames follow each other.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pipelines.core.errors import DiskFull, PublishError
from pipelines.core.files import JSONObject, archive_name
from pipelines.core.results import MARKER
from pipelines.core.secrets import served
from pipelines.publishing.destinations.destination import differences, marker_bytes, marker_in, sha256_of

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Folder:
    """A folder on this machine, relative to the working folder."""

    example: ClassVar[str] = "registry/demo"

    def __init__(self, to: str, private: bool = True) -> None:
        self.to = to
        # a link keeps pointing at what is replaced behind it
        self.path = Path(os.path.realpath(os.path.expanduser(to)))

    @staticmethod
    def claims(to: str) -> bool:
        """Whatever no other kind claims: it stands last in the registry."""
        return True

    @staticmethod
    def mistake(to: str) -> str | None:
        """Names of folders that cannot be, and folders that hold something else."""
        if not to.strip():
            return "is empty; write a folder such as registry/my-model, a URL such as s3://bucket/x, or hub:owner/name"
        if any(ord(letter) < 32 for letter in to):
            return "holds a control character, which no folder's name may have"
        return Folder(to)._refusal()

    @property
    def location(self) -> str:
        """The absolute path."""
        return str(self.path)

    def load_from(self) -> str:
        """The folder as the recipe names it; of what a job of a server publishes the one that is downloaded."""
        return archive_name(self.to.rstrip("/").rpartition("/")[2]) if served() else self.to

    def marker(self) -> dict[str, Any] | None:
        """The folder's publication.json."""
        try:
            return marker_in((self.path / MARKER).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise PublishError(f"'{self.to}' cannot be read: {error.strerror}; correct its permissions") from None

    def holds(self, checksums: Mapping[str, str]) -> bool:
        """Reads every file again."""
        return not self._changed(self.path, checksums)

    def push(self, folder: Path, publication: JSONObject) -> str:
        """Copy beside the place, compare, take the name."""
        refusal = self._refusal()
        if refusal:
            raise PublishError(f"publish.to '{self.to}' {refusal}")
        incoming = self.path.with_name(f".{self.path.name}.{str(publication['fingerprint'])[:16]}.incoming")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(incoming, ignore_errors=True)  # left by a publication that was killed
            # not with the modes of the files: safetensors makes its own readable by their owner alone
            shutil.copytree(folder, incoming, copy_function=shutil.copyfile)
            changed = self._changed(incoming, publication["checksums"])
            if changed:
                raise PublishError(f"'{changed[0]}' did not arrive unchanged in '{incoming.parent}'; check that disk")
            (incoming / MARKER).write_bytes(marker_bytes(publication, complete=True))
            _sync(incoming)
            _take_the_place(incoming, self.path)
        except OSError as error:
            # copytree collects the errors of all files into one that has no number of its own
            if error.errno in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in str(error):
                raise DiskFull(f"the disk of '{self.to}' is full; free some space and run again") from None
            raise PublishError(
                f"'{self.to}' cannot be written: {error.strerror or error}; correct publish.to or its permissions"
            ) from None
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        return self.location

    def _refusal(self) -> str | None:
        if self.path == self.path.parent:
            return "is the root of the file system; name a folder of its own"
        try:
            if self.path.exists() and not self.path.is_dir():
                return "is a file, must be a folder"
            holds_something_else = self.path.is_dir() and any(self.path.iterdir()) and self.marker() is None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return "is a name that is too long for the file system; choose a shorter one"
            return "cannot be read; correct its permissions or choose another folder"
        except PublishError:
            return "cannot be read; correct its permissions or choose another folder"
        if holds_something_else:
            return "holds files that are no Finery publication; choose another folder, or empty this one"
        return None

    @staticmethod
    def _changed(folder: Path, checksums: Mapping[str, str]) -> list[str]:
        actual = {name: sha256_of(folder / name) for name in checksums if (folder / name).is_file()}
        return differences(checksums, actual)


def _sync(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _take_the_place(incoming: Path, place: Path) -> None:
    """Give `incoming` the name `place`; what lay there before is deleted afterwards, or stays when this fails."""
    if not place.exists():
        os.rename(incoming, place)
    elif _exchange(incoming, place):
        shutil.rmtree(incoming, ignore_errors=True)  # now the older publication
    else:
        older = incoming.with_suffix(".older")
        shutil.rmtree(older, ignore_errors=True)
        os.rename(place, older)
        try:
            os.rename(incoming, place)
        except OSError:
            os.rename(older, place)
            raise
        shutil.rmtree(older, ignore_errors=True)
    _sync_name(place.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _sync_name(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
