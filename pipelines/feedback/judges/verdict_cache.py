"""What a judge has answered, kept on disk by the content of the question: it is not asked or paid for twice.

One line of JSON an answer, appended under a file lock and forced to the disk before it is used. A line that a crash
tore is cut off before the next one is written; several processes may share the file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO


def key_of(question: Mapping[str, object]) -> str:
    """The name of a question: SHA-256 of its canonical JSON."""
    text = json.dumps(question, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class VerdictCache:
    """The answers in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._answers: dict[str, Any] = {}
        self._read = 0
        """Bytes of the file that are known."""

    def get(self, key: str) -> Any | None:
        """The answer kept under that name, by this process or another."""
        if key not in self._answers:
            self._refresh()
        return self._answers.get(key)

    def put(self, key: str, answer: Any) -> None:
        """Keep an answer; it is on the disk when this returns. Raises OSError where the disk refuses."""
        line = json.dumps({"key": key, "answer": answer}, ensure_ascii=True).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = file.seek(0, os.SEEK_END)
            whole = _whole_lines(file, size)
            if whole < size:
                file.truncate(whole)
            file.seek(0, os.SEEK_END)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._answers[key] = answer

    def _refresh(self) -> None:
        """Take in what was appended since the last look."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return
        if size < self._read:
            self._read = 0  # somebody emptied it
        if size == self._read:
            return
        with open(self.path, "rb") as file:
            file.seek(self._read)
            added = file.read(size - self._read)
        end = added.rfind(b"\n") + 1
        for line in added[:end].splitlines():
            try:
                record = json.loads(line)
                self._answers[record["key"]] = record["answer"]
            except (ValueError, KeyError, TypeError):
                continue  # a line that a crash tore and a later one was glued to: its question is asked again
        self._read += end


def _whole_lines(file: BinaryIO, size: int) -> int:
    """The length of the file up to the end of its last whole line."""
    window = 1 << 16
    while size:
        start = max(0, size - window)
        file.seek(start)
        at: int = file.read(size - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        if start == 0:
            return 0
        window *= 4
    return 0
