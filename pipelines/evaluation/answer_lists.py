"""Predicted answers and lists of right ones, checked once for every metric of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def paired_answers(predictions: Any, references: Any) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """A text and a list of texts a question. Raises ValueError where they are something else, differ in length, or are empty."""
    said, right = list(predictions), [list(answers) if isinstance(answers, list | tuple) else answers for answers in references]
    if len(said) != len(right):
        raise ValueError(f"predictions and references must be as many, found {len(said)} and {len(right)}")
    if not said:
        raise ValueError("there is no question to score")
    wrong = [text for text in said if not isinstance(text, str)]
    if wrong:
        raise ValueError(f"predictions must be texts, found {type(wrong[0]).__name__}")
    strange = [answers for answers in right if not isinstance(answers, list) or not all(isinstance(text, str) for text in answers)]
    if strange:
        raise ValueError(f"references must be lists of texts, one list a question, found {str(strange[0])[:40]}")
    return said, right
