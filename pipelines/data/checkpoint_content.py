"""What tells two checkpoints apart, for what must be made again when one changes."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pipelines.data.file_source import file_hash


def checkpoint_content(source: str, revision: str | None = None) -> str:
    """A hash over the names and bytes of a folder's files, or the name and revision of a Hub repository. Raises DataError."""
    folder = Path(source)
    if not folder.is_dir():
        return f"{source}@{revision or 'main'}"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256("\n".join(f"{path.relative_to(folder)} {file_hash(path)}" for path in files).encode()).hexdigest()
