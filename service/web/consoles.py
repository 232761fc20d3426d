"""The end of what an attempt printed, as text that a page can show: no colours, no overwritten lines, no control characters."""

from __future__ import annotations

import re
from pathlib import Path

from service.executors.console import read_console, tail

SHOWN = 64_000
"""Bytes at the end of a log that a page shows."""
LONGEST_LINE = 4_000
ESCAPE = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def readable(text: str) -> str:
    """What a terminal would show at the end: escapes gone, of each line only what was written after its last return."""
    lines = []
    for line in ESCAPE.sub("", text.replace("\r\n", "\n")).split("\n"):
        last = line.rstrip("\r").rpartition("\r")[2]
        last = CONTROL.sub("\N{REPLACEMENT CHARACTER}", last)
        lines.append(last if len(last) <= LONGEST_LINE else f"{last[:LONGEST_LINE]} … {len(last) - LONGEST_LINE:,} more characters")
    return "\n".join(lines)


def last_part(record: Path) -> str:
    """The end of an attempt's log, whole lines; empty when it has not printed anything."""
    text = tail(record, SHOWN)
    if len(text.encode()) >= SHOWN:
        text = text.partition("\n")[2]
    return readable(text)


def end_of(record: Path) -> int:
    """How many bytes the attempt has printed so far."""
    files = sorted((record / "console").glob("*.log"))
    return int(files[-1].stem) + files[-1].stat().st_size if files else 0


def since(record: Path, after: int) -> tuple[str, int]:
    """What was printed from byte `after` on, up to the last whole line, and where that ends; of much, only the end."""
    end = end_of(record)
    start = max(after, end - SHOWN)
    if end <= after:
        return "", after
    raw = b"".join(read_console(record, start))
    whole = raw.rfind(b"\n") + 1
    if not whole:
        return "", after
    text = raw[:whole].decode(errors="replace")
    if start > after:
        text = f"… {start - after:,} bytes left out …\n{text.partition(chr(10))[2]}"
    return readable(text), start + whole
