"""Which models see only what comes before a token, so that it can be named from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.fields.model_types import model_types

BOTH_WAYS = ("bert-generation", "xlnet")
"""Model types that see both ways although they have no masked-LM head."""


def sees_ahead(architecture: Mapping[str, Any]) -> str | None:
    """Why a model of this resolved architecture would see the token it must name, as a sentence without its subject."""
    model_type = architecture.get("model_type", "finery")
    if model_type == "finery":
        family = architecture.get("family", "encoder")
        return None if family == "decoder" else f"needs a model that sees only what comes before: family decoder, not {family}"
    known = model_types().get(model_type)
    if known is None or architecture.get("is_decoder"):
        return None
    encoder = "masked_lm" in known.heads and "seq2seq_lm" not in known.heads
    if not encoder and model_type not in BOTH_WAYS:
        return None
    instead = "set is_decoder: true, or " if "is_decoder" in known.keys else ""
    return f"needs a model that sees only what comes before, but {model_type} sees both ways; {instead}use a decoder such as gpt2"
