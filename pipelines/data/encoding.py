"""Labelled texts as token ids: tokenised once, kept as columns, padded only when a batch is put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.data.columns import Columns
from pipelines.protocols import Rows

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 2_000
"""Rows that are tokenised at a time: enough to keep every core busy, few enough to bound memory."""


@dataclass(frozen=True, kw_only=True)
class Examples(Columns):
    """Tokenised rows of one split, as columns."""

    labels: list[Any] | None
    """A class, a number, or ids of what the text is to become; None where the labels are not public."""
    index: list[int]
    """Row numbers in the file."""

    def __getitem__(self, position: int) -> dict[str, Any]:
        example = super().__getitem__(position) | {"index": self.index[position]}
        return example if self.labels is None else example | {"labels": self.labels[position]}


def encode(tokenizer: Any, rows: Rows, max_length: int) -> Examples:
    """Tokenise `rows`, special tokens included. Longer rows lose tokens from the end of their longer text."""
    segments = "token_type_ids" in tokenizer.model_input_names
    input_ids: list[list[int]] = []
    token_type_ids: list[list[int]] = []
    truncated = 0
    with settings_kept(tokenizer):
        for start in range(0, len(rows), CHUNK):
            texts = list(rows.texts[start : start + CHUNK])
            pairs = None if rows.pairs is None else list(rows.pairs[start : start + CHUNK])
            batch = tokenizer(
                texts, pairs, truncation=True, max_length=max_length, padding=False,
                return_token_type_ids=segments, return_attention_mask=False, verbose=False,
            )
            input_ids += batch["input_ids"]
            if segments:
                token_type_ids += batch["token_type_ids"]
            truncated += _count_truncated(tokenizer, batch, texts, pairs, max_length)
    return Examples(
        input_ids=input_ids,
        token_type_ids=token_type_ids if segments else None,
        labels=None if rows.labels is None else list(rows.labels),
        index=list(rows.index),
        lengths=np.fromiter((len(row) for row in input_ids), dtype=np.int64, count=len(input_ids)),
        truncated=truncated,
    )


@contextmanager
def settings_kept(tokenizer: Any) -> Iterator[None]:
    """A fast tokenizer remembers how it was last told to truncate, and would save that with itself."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    before = None if backend is None else backend.truncation
    try:
        yield
    finally:
        if backend is not None and before is not None:
            backend.enable_truncation(**before)
        elif backend is not None:
            backend.no_truncation()


def _count_truncated(tokenizer: Any, batch: Any, texts: list[str], pairs: list[str] | None, max_length: int) -> int:
    """How many rows of the batch were cut."""
    if batch.encodings is not None:
        return sum(bool(encoding.overflowing) for encoding in batch.encodings)
    full = [row for row, ids in enumerate(batch["input_ids"]) if len(ids) == max_length]  # only these can have been cut
    if not full:
        return 0
    chosen = [texts[row] for row in full], None if pairs is None else [pairs[row] for row in full]
    uncut = tokenizer(*chosen, truncation=False, padding=False, return_attention_mask=False, verbose=False)
    return sum(len(ids) > max_length for ids in uncut["input_ids"])


def collate(
    tokenizer: Any, examples: Sequence[dict[str, Any]], pad_to_multiple_of: int | None = None
) -> dict[str, Tensor]:
    """A batch as long as its longest example: `input_ids`, `attention_mask`, and segments and labels if there are."""
    import torch

    lengths = np.fromiter((len(example["input_ids"]) for example in examples), dtype=np.int64, count=len(examples))
    longest = int(lengths.max())
    if pad_to_multiple_of:
        longest = -(-longest // pad_to_multiple_of) * pad_to_multiple_of
    real = np.arange(longest)[None, :] < lengths[:, None]  # (batch, length)
    if tokenizer.padding_side == "left":
        real = real[:, ::-1]

    def padded(key: str, value: int) -> Tensor:
        array = np.full(real.shape, value, dtype=np.int64)
        array[real] = np.concatenate([np.asarray(example[key], dtype=np.int64) for example in examples])
        return torch.from_numpy(array)

    batch = {
        "input_ids": padded("input_ids", tokenizer.pad_token_id),
        "attention_mask": torch.from_numpy(real.astype(np.int64)),
    }
    if "token_type_ids" in examples[0]:
        batch["token_type_ids"] = padded("token_type_ids", tokenizer.pad_token_type_id)
    if "labels" in examples[0]:
        labels = [example["labels"] for example in examples]
        kind = torch.float32 if isinstance(labels[0], float) else torch.int64
        batch["labels"] = torch.tensor(labels, dtype=kind)
    return batch
