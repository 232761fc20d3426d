"""Follow an `events.jsonl` while another process writes it: every event once, from now on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Follower:
    """Hands out the events that are written after it was made.

    It remembers how far it has read in bytes, so that a file of hours is not read again for each new line. When the
    file becomes shorter than that (a torn line is cut off, a folder is replaced), it starts again and goes by ids.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._last_id = 0
        self.new()

    def new(self) -> list[dict[str, Any]]:
        """Whole events written since the last call, oldest first."""
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]  # the rest is still being written
        self._offset += len(whole)
        events = []
        for line in whole.splitlines():
            try:
                event = json.loads(line)
                number = int(event["id"])
            except (ValueError, KeyError, TypeError):
                continue
            if number > self._last_id:
                self._last_id = number
                events.append(event)
        return events
