"""Which entries of a vocabulary continue a word, as one boolean table, for masking whole words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import ModelError

SPACES = ("Ġ", "Ċ", "ĉ", "č", "\u2581", "\n", "\t", "\r")
"""How tokens with white space in front begin: byte-level space, line feed, tab, return; SentencePiece's space; white space itself."""


def continues_word(tokenizer: Any) -> npt.NDArray[np.bool_]:
    """For each id, whether that token goes on with a word. Raises ModelError where tokens do not show it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    description = json.loads(backend.to_str()) if backend is not None else {}
    prefix = description.get("model", {}).get("continuing_subword_prefix")
    kind = description.get("model", {}).get("type")
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    special = set(tokenizer.all_special_ids)
    if kind == "WordPiece":
        table = [token is not None and token.startswith(prefix) for token in tokens]
    elif kind in ("BPE", "Unigram") and any(token is not None and token.startswith(SPACES) for token in tokens):
        table = [token is not None and not token.startswith(SPACES) for token in tokens]
    else:
        raise ModelError(
            "whole_word is true, but this tokenizer does not mark where words begin; leave whole_word out, or train a "
            "tokenizer of our own (tokenizer: {train: wordpiece})"
        )
    return np.asarray([flag and number not in special for number, flag in enumerate(table)], dtype=np.bool_)
