"""What a model must be to be taught token by token with the right beginning given to its decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def misfit(architecture: Mapping[str, Any]) -> str | None:
    """Why teacher forcing cannot teach this model; None if it can."""
    if architecture.get("bidirectional_decoder"):
        return (
            "needs a decoder that sees what is already written and no more, but bidirectional_decoder is true, so that it "
            "would see the very token that it is asked for; leave bidirectional_decoder out, or use mask_predict"
        )
    return None
