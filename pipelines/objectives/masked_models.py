"""Which models can be told who sees whom, by a ready mask of (batch, 1, query, key) and positions of each token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOLD = ("bert", "finery", "gpt2", "gpt_neox", "llama", "qwen2", "qwen3")
"""Model types whose attention takes both as they are."""


def takes_masks(architecture: Mapping[str, Any]) -> str | None:
    """Why a model of this resolved architecture does not take a ready mask, as a sentence without its subject."""
    model_type = architecture.get("model_type", "finery")
    if model_type not in TOLD:
        return f"needs attention that takes a mask for each pair of tokens, which {model_type} is not known for; known: {', '.join(TOLD)}"
    if model_type == "finery" and architecture.get("attention_pattern") == "linear":
        return "needs attention that takes a mask for each pair of tokens, which attention_pattern linear does not; use another pattern"
    return None
