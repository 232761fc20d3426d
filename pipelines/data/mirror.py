"""Local copies of Hub data sets in the folders of FINERY_DATA.

FINERY_DATA is a list of folders, separated as in PATH; the first that holds the data set answers.
"""

from __future__ import annotations

from pathlib import Path

from pipelines.core.data_files import choose, mirror_candidates, mirror_folder, mirror_roots
from pipelines.core.errors import DataError
from pipelines.data.files import write_example
from pipelines.data.sources import FileSource


def find(path: str, name: str | None) -> FileSource | None:
    """The data set `path` of the mirror. Raises DataError when it lacks the configuration."""
    folder = mirror_folder(path)
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
    if not mirror_roots():
        return ["FINERY_DATA (not set)"]
    return [str(folder) for folder in mirror_candidates(path)]
