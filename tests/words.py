"""Long lists of short words, written as they are read."""

from __future__ import annotations


def words_of(text: str) -> list[str]:
    """The words of a text."""
    return text.split()
