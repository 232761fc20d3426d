"""Two recipes side by side, line by line, with the line numbers of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from service.api.routes.watching import comparable

AROUND = 3
"""Equal lines that are shown before and after a change."""


@dataclass(frozen=True)
class Line:
    """One line of a difference."""

    kind: str
    """`same`, `gone`, `new`, or `gap` for equal lines that are left out."""
    text: str
    left: int | None = None
    """Its number in the first text, from 1."""
    right: int | None = None


def difference(left: str, right: str) -> list[Line]:
    """What turns `left` into `right`; empty when they are equal."""
    before, after = left.splitlines(), right.splitlines()
    if not comparable(before, after):
        gone, new = (enumerate(lines, start=1) for lines in (before, after))
        return [*(Line("gone", line, left=at) for at, line in gone), *(Line("new", line, right=at) for at, line in new)] if before != after else []
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    if all(tag == "equal" for tag, *_ in blocks):
        return []
    found: list[Line] = []
    for place, (tag, start, stop, first, last) in enumerate(blocks):
        if tag == "equal":
            found += _equal(before, start, stop, first, opens=place == 0, closes=place == len(blocks) - 1)
            continue
        found += (Line("gone", before[number], left=number + 1) for number in range(start, stop))
        found += (Line("new", after[number], right=number + 1) for number in range(first, last))
    return found


def _equal(lines: list[str], start: int, stop: int, first: int, opens: bool, closes: bool) -> Iterator[Line]:
    head = 0 if opens else AROUND
    tail = 0 if closes else AROUND
    left_out = stop - start - head - tail
    for number in range(start, stop):
        at = number - start
        if left_out > 1 and head <= at < head + left_out:
            if at == head:
                yield Line("gap", f"{left_out} equal lines")
            continue
        yield Line("same", lines[number], number + 1, first + at + 1)
