"""A tiny classifier and its tokenizer, and the context that an evaluate stage is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.classifiers import classifier, evaluation_context, sentences, tokenizer

__all__ = ["classifier", "evaluation_context", "sentences", "tokenizer"]


@pytest.fixture
def context(evaluation_context: Callable[..., Any]) -> Callable[..., Any]:
    """What `run` gives to an evaluate stage."""
    return evaluation_context
