"""Fewer cases that say as much: of a product every value of every axis once, or every pair of values; of random examples
as many as a usual run has time for, and all of them with the long tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

import hypothesis
import pytest

LONG = "FINERY_LONG_TESTS"
"""Set while the long tests run too."""


def examples(usual: int, long: int, **words: Any) -> hypothesis.settings:
    """So many random examples in a usual run, and so many with the long tests."""
    return hypothesis.settings(max_examples=long if os.environ.get(LONG) else usual, deadline=None, **words)


def covering(
    cases: Iterable[Sequence[Any]], strength: int = 1, name: Callable[..., str] | None = None, drop: bool = False
) -> list[Any]:
    """The cases as pytest parameters: those that bring values of `strength` axes together for the first time run
    always, the others with the long tests, or not at all where `drop` is set, for cases that one test takes one after another.

    Cases are taken greedily, the one with the most that is new first and the earlier of equals, so that a new entry
    of a registry is in at once and the choice depends on nothing but the list.
    """
    whole = [tuple(case) for case in cases]
    names = [name(*case) if name else "-".join(str(part) for part in case) for case in whole]

    def groups(at: int) -> set[tuple[tuple[int, str], ...]]:
        parts = [(axis, str(part)) for axis, part in enumerate(whole[at])]
        return set(combinations(parts, min(strength, len(parts))))

    missing = set().union(*(groups(at) for at in range(len(whole)))) if whole else set()
    chosen = set()
    while missing:
        best = max(range(len(whole)), key=lambda at: (len(groups(at) & missing), -at))
        chosen.add(best)
        missing -= groups(best)
    return [
        pytest.param(*case, id=names[at], marks=() if at in chosen else pytest.mark.long)
        for at, case in enumerate(whole)
        if at in chosen or not drop
    ]
