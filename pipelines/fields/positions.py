"""How many tokens a model has positions for, which its config does not say in one way."""

from __future__ import annotations

from typing import Any

AFTER_PADDING = frozenset(
    {
        "camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "markuplm", "mpnet", "roberta",
        "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
    }
)  # fmt: skip
"""Families of RoBERTa's kind: their first token stands at `pad_token_id + 1`, so that 514 positions hold 512 tokens."""


def usable_positions(config: Any) -> int | None:
    """Tokens of the longest text that a model of this transformers config can read; None where there is no bound."""
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:  # XLNet says -1
        return None
    model_type = getattr(config, "model_type", "")
    if model_type not in AFTER_PADDING:
        return positions
    padding = 1 if model_type == "mpnet" else getattr(config, "pad_token_id", None) or 0
    return positions - padding - 1


def positions_for_text(model: Any) -> int | None:
    """Tokens of the longest text that an open model can read: its positions but those that its virtual tokens take."""
    positions = usable_positions(model.config)
    return None if positions is None else positions - getattr(model, "virtual_tokens", 0)
