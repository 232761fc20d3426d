"""Sources and targets as token ids: tokenised once, each cut to its own length, padded when a batch is put together."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipelines.data.encoding import CHUNK, Examples, settings_kept
from pipelines.protocols import Rows


def encode_pairs(tokenizer: Any, rows: Rows, max_source_length: int, max_target_length: int) -> Examples:
    """Tokenise the texts of `rows` and, as labels, the texts that they are to become; special tokens included.

    The length of an example is that of both together, so that batches of similar length have little padding in
    either. Segments are left out: the models that write have none.
    """
    sources, truncated = encode_texts(tokenizer, rows.texts, max_source_length, "text")
    targets, cut = encode_texts(tokenizer, rows.labels or (), max_target_length, "text_target")
    return Examples(
        input_ids=sources,
        token_type_ids=None,
        labels=targets,
        index=list(rows.index),
        lengths=np.fromiter((len(s) + len(t) for s, t in zip(sources, targets, strict=True)), dtype=np.int64, count=len(sources)),
        truncated=int(np.count_nonzero(truncated | cut)),
    )


def encode_texts(tokenizer: Any, texts: Any, max_length: int, role: str) -> tuple[list[list[int]], Any]:
    """Ids of every text in its role, and which texts lost their end (texts,)."""
    ids: list[list[int]] = []
    cut: list[int] = []
    with settings_kept(tokenizer):
        for start in range(0, len(texts), CHUNK):
            batch = tokenizer(
                **{role: list(texts[start : start + CHUNK])}, truncation=True, max_length=max_length, padding=False,
                return_token_type_ids=False, return_attention_mask=False, verbose=False,
            )  # fmt: skip
            full = [row for row, found in enumerate(batch["input_ids"]) if len(found) == max_length]  # only these can be cut
            cut += [start + full[place] for place in _longer(tokenizer, [texts[start + row] for row in full], max_length, role)]
            ids += batch["input_ids"]
    flags = np.zeros(len(texts), dtype=np.bool_)
    flags[cut] = True
    return ids, flags


def _longer(tokenizer: Any, texts: list[str], max_length: int, role: str) -> list[int]:
    """Positions of the texts that have more than `max_length` tokens."""
    if not texts:
        return []
    uncut = tokenizer(**{role: texts}, truncation=False, padding=False, return_attention_mask=False, verbose=False)["input_ids"]
    return [place for place, found in enumerate(uncut) if len(found) > max_length]
