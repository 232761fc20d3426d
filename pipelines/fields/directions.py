"""Which models see only what comes before a token, by the words of their config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.fields.model_types import model_types


def looks_back_only(words: Mapping[str, Any]) -> bool:
    """Whether the first token of a text knows nothing of the others.

    A decoder alone does; in an encoder-decoder each token of the decoder sees the whole text through the encoder.
    """
    model_type = words.get("model_type", "finery")
    if model_type == "finery":
        return bool(words.get("family", "encoder") == "decoder")
    known = model_types().get(str(model_type))
    if known is None:
        return False
    return bool(words.get("is_decoder")) or ("causal_lm" in known.heads and not {"masked_lm", "seq2seq_lm"} & set(known.heads))
