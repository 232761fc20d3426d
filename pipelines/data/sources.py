"""Where a data set is looked for: each place of the SOURCES table in turn, the first that knows the name answers.

A source module has two functions: `find(path, name)`, which returns a Source or None, and `looked(path)`, which says
in words where it looked. Nothing is read before `load`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from pipelines.errors import DataError
from pipelines.registry import SOURCES, nearest

if TYPE_CHECKING:
    from datasets import Dataset


class Source(Protocol):
    """One data set in one configuration."""

    def splits(self) -> list[str]:
        """Names of the splits that exist. Raises DataError."""

    def load(self, split: str) -> Dataset:
        """The rows of a split. Raises DataError."""

    def content_hash(self, split: str) -> str:
        """A hash that changes when the split's data does. Raises DataError."""

    def describe(self) -> str:
        """What this is and where it lies, for messages."""


def find(path: str, name: str | None = None) -> Source:
    """The data set called `path`, in the configuration `name`. Raises DataError."""
    for kind in SOURCES:
        source: Source | None = SOURCES.load(kind)(path, name)
        if source is not None:
            return source
    raise DataError(f"data set '{path}' was not found; looked in {places(path)}")


def places(path: str) -> str:
    """Every place where `path` is looked for, in words."""
    looked = [place for kind in SOURCES for place in import_module(SOURCES.module(kind)).looked(path)]
    return "; ".join(looked)


def check_split(split: str, splits: list[str], described: str) -> None:
    """Raise DataError when `split` is not one of `splits`."""
    if split not in splits:
        hint = nearest(split, splits)
        raise DataError(f"{described} has no split '{split}'.{hint} Splits found: {', '.join(splits)}")


def check_columns(columns: tuple[str, ...], found: list[str], described: str) -> None:
    """Raise DataError when one of `columns` is not among those `found`."""
    for column in columns:
        if column not in found:
            raise DataError(
                f"{described} has no column '{column}'.{nearest(column, found)} Columns found: {', '.join(found)}"
            )
