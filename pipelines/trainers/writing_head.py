"""The head with which an architecture writes texts, told by a recipe alone: a decoder's or an encoder-decoder's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.fields import architectures
from pipelines.fields.directions import looks_back_only
from pipelines.protocols import Head

WRITERS = ("causal_lm", "seq2seq_lm")


def of_shape(architecture: Mapping[str, Any]) -> Head | None:
    """The head with which an architecture of a recipe writes token by token; None where it cannot."""
    words, heads = architectures.resolve(architecture), architectures.heads(architecture)
    if looks_back_only(words) and "causal_lm" in heads:
        return Head("causal_lm")
    if "seq2seq_lm" in heads and not words.get("bidirectional_decoder"):
        return Head("seq2seq_lm")
    return None
