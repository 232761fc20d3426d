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


def some(values: Iterable[Any], at: int, usual: int) -> list[Any]:
    """So many of the values in a usual run, others at each place, and all of them with the long tests."""
    whole = list(values)
    return whole if os.environ.get(LONG) else [whole[(at * usual + each) % len(whole)] for each in range(usual)]


def cover(groups: Sequence[set[Any]]) -> set[int]:
    """Which sets hold together what all of them hold, taken greedily: the one with the most that is new first, and the
    earlier of equals."""
    missing: set[Any] = set().union(*groups)
    chosen = set()
    while missing:
        best = max(range(len(groups)), key=lambda at: (len(groups[at] & missing), -at))
        chosen.add(best)
        missing -= groups[best]
    return chosen


def covering(
    cases: Iterable[Sequence[Any]],
    strength: int = 1,
    name: Callable[..., str] | None = None,
    drop: bool = False,
    ways: Callable[..., set[Any]] | None = None,
) -> list[Any]:
    """The cases as pytest parameters: those that bring values of `strength` axes together for the first time run
    always, the others with the long tests, or not at all where `drop` is set, for cases that one test takes one after another.
    `ways` says of a case what is to be met in its place: the ways that it takes through the code.

    A new entry of a registry is in at once, and the choice depends on nothing but the list.
    """
    whole = [tuple(case) for case in cases]
    names = [name(*case) if name else "-".join(str(part) for part in case) for case in whole]

    def groups(case: tuple[Any, ...]) -> set[Any]:
        if ways is not None:
            return ways(*case)
        parts = [(axis, str(part)) for axis, part in enumerate(case)]
        return set(combinations(parts, min(strength, len(parts))))

    chosen = cover([groups(case) for case in whole])
    return [
        pytest.param(*case, id=names[at], marks=() if at in chosen else pytest.mark.long)
        for at, case in enumerate(whole)
        if at in chosen or not drop
    ]


def by_turns(names: Iterable[Any], choices: Sequence[Any], name: Callable[[Any, Any], str] | None = None) -> list[Any]:
    """Each name with one of the choices, another than the name before it, as pytest parameters; with the other choices in
    the long tests."""
    return [
        pytest.param(
            each,
            choice,
            id=name(each, choice) if name else f"{each}-{choice}",
            marks=() if turn == at % len(choices) else pytest.mark.long,
        )
        for at, each in enumerate(names)
        for turn, choice in enumerate(choices)
    ]
