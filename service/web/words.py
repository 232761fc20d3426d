"""Numbers, sizes and times in the words of the pages."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Any

UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))


def ago(seconds: float | None, now: float | None = None) -> str:
    """How long ago, or in how long: `12 s ago`, `3 h ago`, `in 5 min`; the date when it is more than a month."""
    if seconds is None:
        return ""
    difference = (time.time() if now is None else now) - seconds
    if abs(difference) > 30 * 86_400:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
    if abs(difference) < 2:
        return "now"
    words = f"{int(abs(difference))} s"
    for unit, size in UNITS:
        if abs(difference) >= size:
            words = f"{int(abs(difference) // size)} {unit}"
            break
    return f"{words} ago" if difference > 0 else f"in {words}"


def exact(seconds: float | None) -> str:
    """`2026-11-21 21:30:05 UTC`."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(seconds: float | None) -> str:
    """As `<time datetime>` wants it."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def duration(seconds: float | None) -> str:
    """`0.4 s`, `42 s`, `3 min 5 s`, `2 h 10 min`, `4 d 2 h`."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def size(count: float | None) -> str:
    """Bytes: `512 B`, `1.5 kB` … in thousands, as disks are sold; memory of GPUs is usually told in GiB, see `memory`."""
    if count is None:
        return ""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def memory(count: float | None) -> str:
    """Bytes of main or GPU memory: `139 GiB`."""
    if not count:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.3g} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def count(number: Any) -> str:
    """A whole number with its thousands apart: `1,234,567`."""
    return f"{number:,}" if isinstance(number, int) else number_text(number)


def number_text(value: Any) -> str:
    """A measured number with four figures that matter, and no more: `0.8423`, `12.35`, `1.2e-05`, `1,234`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.3e}"
    if abs(value) < 0.001:
        return f"{value:.2e}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, 4 - whole)}f}"


def short_id(identifier: str) -> str:
    """The end of an id, enough to tell it apart by eye: `job-…k3v9q2`."""
    kind, hyphen, rest = identifier.partition("-")
    return f"{kind}-…{rest[-6:]}" if hyphen and len(rest) > 10 else identifier
