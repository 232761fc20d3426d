"""What a feedback stage has done so far, kept in parts: a run that is stopped goes on behind the last.

A part is `checkpoints/checkpoint-<n>/rows.jsonl`; it counts once `complete.json` stands beside it, written last.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipelines.core.files import COMPLETE, lines_of, remove_unfinished, write_text

Row = dict[str, Any]
"""One line of a file that the stage leaves or keeps."""
ROWS = "rows.jsonl"


class FeedbackProgress:
    """The parts of one stage."""

    def __init__(self, folder: Path, tell: Callable[[int, Path], None]) -> None:
        self.folder = folder / "checkpoints"
        self.tell = tell
        """Called with the number and place of each new part."""
        remove_unfinished(self.folder)

    def rows(self, number: int) -> list[Row] | None:
        """The rows of a part, or None while it is not done."""
        place = self.folder / f"checkpoint-{number}"
        if not (place / COMPLETE).is_file():
            return None
        return [json.loads(line) for line in lines_of((place / ROWS).read_text(encoding="utf-8"))]

    def save(self, number: int, rows: Sequence[Row]) -> None:
        """Keep a part; it is on the disk when this returns."""
        place = self.folder / f"checkpoint-{number}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        write_lines(place / ROWS, rows)
        write_text(place / COMPLETE, json.dumps({"rows": len(rows)}))
        self.tell(number, place)

    def done(self, number: int, make: Callable[[], Sequence[Row]]) -> list[Row]:
        """The rows of a part, made now unless they are there."""
        rows = self.rows(number)
        if rows is None:
            self.save(number, make())
            rows = self.rows(number)
            assert rows is not None
        return rows

    def clear(self) -> None:
        """Forget the parts: what they led to is written."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_lines(path: Path, rows: Sequence[Row]) -> None:
    """Write JSON Lines, one row a line, whole or not at all."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows))
