"""Names for prepared data: the same text, tokenizer and shape are prepared once and found again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def prepared_key(tokenizer: Any, content: Mapping[str, str], *shape: Any) -> str:
    """A name that changes with the tokenizer, the data's content and the shape asked for."""
    backend = tokenizer.backend_tokenizer.to_str() if hasattr(tokenizer, "backend_tokenizer") else repr(tokenizer)
    text = json.dumps([backend, dict(content), shape], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
