"""Opening tokenizers: the run's own, a folder's, the Hub's."""

from __future__ import annotations

from typing import Any

from pipelines.errors import ModelError
from pipelines.registry import TOKENIZERS

DEFAULT = "wordpiece"
"""What a model from scratch gets when its recipe names no tokenizer."""


def block(name: str) -> Any:
    """The algorithm of that name with its default settings."""
    return TOKENIZERS.load(name)()


def open_tokenizer(source: str, revision: str | None = None) -> Any:
    """A fast tokenizer from a folder or the Hub. Raises ModelError."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
    except (OSError, ValueError, KeyError) as error:
        sentence = " ".join(str(error).split())
        raise ModelError(f"no tokenizer could be opened from '{source}': {sentence[:300]}") from error
    if not tokenizer.is_fast:
        raise ModelError(f"the tokenizer of '{source}' has no fast version, which Finery needs")
    return tokenizer
