"""Users' own files: an absolute path to a file, a folder of files, or a pattern with `*`, `?` or `[`.

Recipes may write relative paths; they are made absolute when a recipe is checked (`pipelines.data.references`). Which
files are which split stands in `pipelines.core.data_files`.
"""

from __future__ import annotations

import os
from pathlib import Path

from pipelines.core.data_files import splits_at
from pipelines.data.sources import FileSource


def find(path: str, name: str | None) -> FileSource | None:
    """The files at the absolute path or pattern `path`. Raises DataError."""
    splits = splits_at(path, name)
    return None if splits is None else FileSource(str(Path(path)), splits)


def write_example(folder: Path) -> None:
    """A data set in files."""
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        (folder / f"{name}.jsonl").write_text(f'{{"text": "{name}"}}\n')


def example(folder: Path) -> str:
    """A data set that is found here, put below `folder`."""
    write_example(folder / "files")
    return str(folder / "files")


def looked(path: str) -> list[str]:
    """Where `find` looked."""
    return [path] if os.path.isabs(path) else []
