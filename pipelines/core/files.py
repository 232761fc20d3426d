"""Files that are either complete or not there: written under a temporary name, synced, renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; leaving the block without an error turns it into `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """`content` as indented JSON. NaN is refused: it is no JSON."""
    with whole_file(path) as temporary:
        temporary.write_text(
            json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )


def configs_folder() -> Path:
    """The folder with `architectures/`, `recipes/`, `smoke/` and `launch/`. Raises FileNotFoundError."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the folder configs/ is neither in {package} nor beside it: install Finery again")
