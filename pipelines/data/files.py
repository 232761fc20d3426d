"""Users' own files: an absolute path to a file, a folder of files, or a pattern with `*`, `?` or `[`.

Recipes may write relative paths; they are made absolute when a recipe is checked (`pipelines.data.references`).
A file, or the files of a pattern, are one split, `train`; a folder is read as `pipelines.data.folders` says.
"""

from __future__ import annotations

import glob
import os
from pathlib import Path

from pipelines.data.file_source import FileSource
from pipelines.data.folders import choose
from pipelines.data.tables import READERS
from pipelines.errors import DataError


def find(path: str, name: str | None) -> FileSource | None:
    """The files at the absolute path or pattern `path`. Raises DataError."""
    if not os.path.isabs(path):
        return None
    place = Path(path)
    try:
        if place.is_dir():
            return FileSource(str(place), choose(place, name, f"folder {place}"))
        files = [place] if place.is_file() else matches(path)
    except OSError as error:
        raise DataError(f"{path} could not be read: {error.strerror}") from None
    if not files:
        raise DataError(f"{path} does not exist")
    if name is not None:
        raise DataError(f"{path} is a file and has no configuration '{name}'; leave 'name' out")
    return FileSource(path, {"train": tuple(files)})


def is_pattern(path: str) -> bool:
    """Whether `path` has wildcards."""
    return glob.has_magic(path)


def matches(path: str) -> list[Path]:
    """The data files that a pattern names, sorted; `**` also stands for folders."""
    found = (Path(file) for file in sorted(glob.glob(path, recursive=True)))
    return [file for file in found if file.suffix.lower() in READERS and file.is_file()]


def looked(path: str) -> list[str]:
    """Where `find` looked."""
    return [path] if os.path.isabs(path) else []
