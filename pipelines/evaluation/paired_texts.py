"""Hypotheses and references, checked once for every metric of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def paired_texts(predictions: Any, references: Any) -> tuple[Sequence[str], Sequence[str]]:
    """Both as lists of texts. Raises ValueError where they are no texts, differ in length, or are empty."""
    written, true = list(predictions), list(references)
    if len(written) != len(true):
        raise ValueError(f"predictions and references must be as many, found {len(written)} and {len(true)}")
    if not written:
        raise ValueError("there is no example to score")
    for name, texts in (("predictions", written), ("references", true)):
        wrong = [type(text).__name__ for text in texts if not isinstance(text, str)]
        if wrong:
            raise ValueError(f"{name} must be texts, found {wrong[0]}")
    return written, true
