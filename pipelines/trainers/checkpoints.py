"""Checkpoints that can be trusted: one counts only once its completion marker is written, last of all.

A kill while a checkpoint is written leaves a folder without a marker; it is removed at the next start, and training
continues from the newest marked one.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

MARKER = "complete.json"


def sync(folder: Path) -> None:
    """Force every file of a folder to the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())


def mark_complete(folder: Path, state: dict[str, Any]) -> None:
    """Declare a checkpoint whole. `state` is what the loop needs back beside the trainer's own files."""
    sync(folder)
    temporary = folder / f"{MARKER}.tmp"
    with open(temporary, "w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / MARKER)


def unmark(folder: Path) -> None:
    """Declare that a checkpoint is about to be written again."""
    (folder / MARKER).unlink(missing_ok=True)


def newest_complete(folder: Path) -> Path | None:
    """The complete checkpoint of the highest step."""
    found = [path for path in folder.glob("checkpoint-*") if (path / MARKER).is_file()]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def state_of(checkpoint: Path) -> dict[str, Any]:
    """What `mark_complete` was given."""
    state: dict[str, Any] = json.loads((checkpoint / MARKER).read_text())
    return state


def remove_unfinished(folder: Path) -> list[Path]:
    """Delete checkpoint folders without a marker; returns them."""
    broken = [path for path in folder.glob("checkpoint-*") if not (path / MARKER).is_file()]
    for path in broken:
        shutil.rmtree(path)
    return broken
