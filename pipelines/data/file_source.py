"""A data set that lies in files: which files each split has, and the hash of their bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.data.sources import check_split
from pipelines.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class FileSource:
    """Splits made of files."""

    described: str
    files: Mapping[str, tuple[Path, ...]]
    """The files of each split, in the order in which they are read."""

    def splits(self) -> list[str]:
        """Names of the splits."""
        return list(self.files)

    def load(self, split: str) -> Dataset:
        """The rows of a split. Raises DataError."""
        from pipelines.data.tables import read

        check_split(split, self.splits(), self.described)
        return read(self.files[split])

    def texts(self, split: str, column: str, most: int) -> Dataset | None:
        """One column of a split, no further than `most` texts need it; None where all has to be read. Raises DataError."""
        from pipelines.data.tables import read_texts

        check_split(split, self.splits(), self.described)
        return read_texts(self.files[split], column, most)

    def content_hash(self, split: str) -> str:
        """SHA-256 over the files' endings and bytes; where they lie does not matter. Raises DataError."""
        check_split(split, self.splits(), self.described)
        parts = "\n".join(f"{file.suffix.lower()} {file_hash(file)}" for file in self.files[split])
        return hashlib.sha256(parts.encode()).hexdigest()

    def describe(self) -> str:
        """What this is and where it lies."""
        return self.described


def file_hash(file: Path) -> str:
    """SHA-256 of a file's bytes, computed once while its size and time of change stay the same. Raises DataError."""
    try:
        about = file.stat()
        return _file_hash(file, about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise DataError(f"{file} could not be read: {error.strerror}") from None


@lru_cache(maxsize=4096)
def _file_hash(file: Path, size: int, changed: int) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
