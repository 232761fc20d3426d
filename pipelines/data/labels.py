"""What a label's cell says: the name of a class however it was written, and the order that class names stand in."""

from __future__ import annotations

import math
import re
from typing import Any


def class_name(cell: Any) -> str | None:
    """A label's cell as the name of a class; None when it cannot be one."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float):  # a column with gaps turns whole numbers into 1.0
        return str(int(cell)) if cell.is_integer() else None
    if isinstance(cell, int | str):
        return str(cell).strip()
    return None


def natural_order(name: str) -> tuple[Any, ...]:
    """Sorting key: whole numbers first and by value, then words, numbers in them by value (`b2` before `b10`)."""
    if re.fullmatch(r"[+-]?[0-9]+", name):
        return (0, int(name), name)
    parts = re.split(r"([0-9]+)", name)
    return (1, *((int(part), "") if position % 2 else (-1, part) for position, part in enumerate(parts)), (-2, name))


def is_missing(cell: Any) -> bool:
    """Whether a cell holds nothing: null, not-a-number, or white space."""
    if isinstance(cell, str):
        return not cell.strip()
    return cell is None or (isinstance(cell, float) and math.isnan(cell))
