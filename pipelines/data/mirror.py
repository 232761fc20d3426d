"""Local copies of Hub data sets in the folders of FINERY_DATA.

FINERY_DATA is a list of folders, separated as in PATH; the first that holds the data set answers.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pipelines.core.errors import DataError
from pipelines.data.files import choose, configurations, write_example
from pipelines.data.sources import FileSource

NAME = re.compile(r"^[\w-][\w.-]*(/[\w-][\w.-]*)?$")
"""`name` or `owner/name`, as on the Hub; nothing that could leave the folder."""


def roots() -> list[Path]:
    """The folders in FINERY_DATA."""
    return [Path(root).expanduser() for root in os.environ.get("FINERY_DATA", "").split(os.pathsep) if root]


def candidates(path: str) -> list[Path]:
    """The folders that could hold `path`, in the order in which they are tried."""
    if not NAME.match(path):
        return []
    names = dict.fromkeys((path, path.rpartition("/")[2]))
    return [root.resolve() / name for root in roots() for name in names]


def folder_of(path: str) -> Path | None:
    """The folder that holds `path`."""
    return next((folder for folder in candidates(path) if os.path.isdir(folder) and configurations(folder)), None)


def find(path: str, name: str | None) -> FileSource | None:
    """The data set `path` of the mirror. Raises DataError when it lacks the configuration."""
    folder = folder_of(path)
    if folder is None:
        return None
    described = f"data set '{path}{f'/{name}' if name else ''}' ({folder})"
    try:
        return FileSource(described, choose(folder, name, f"data set '{path}' ({folder})"))
    except OSError as error:
        raise DataError(f"{folder} could not be read: {error.strerror}") from None


def example(folder: Path) -> str:
    """A data set that is found here, put below `folder`, the mirror."""
    write_example(folder / "owner" / "set")
    return "owner/set"


def looked(path: str) -> list[str]:
    """Where `find` looked."""
    if not roots():
        return ["FINERY_DATA (not set)"]
    return [str(folder) for folder in candidates(path)]
