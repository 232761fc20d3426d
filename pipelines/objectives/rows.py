"""Rows of unequal length as rectangles, and what an encoder-decoder reads while it is taught."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import ModelError

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

IGNORED = -100
"""The label of a position that is not asked for."""


def stacked(rows: Sequence[Any], fill: int) -> tuple[Ids, Ids]:
    """The rows, filled up on the right, (batch, length), and their lengths (batch,)."""
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    real = within(lengths, int(lengths.max(initial=0)))
    ids = np.full(real.shape, fill, dtype=np.int64)
    ids[real] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return ids, lengths


def within(lengths: Ids, longest: int) -> Flags:
    """Where the rows are real, (batch, longest)."""
    real: Flags = np.arange(longest)[None, :] < lengths[:, None]
    return real


def squeezed(values: Ids, keep: Flags, fill: int) -> tuple[Ids, Ids]:
    """What is kept of each row, moved to the left, (batch, most kept), and how much it is (batch,)."""
    lengths = keep.sum(axis=1)
    real = within(lengths, int(lengths.max(initial=0)))
    result = np.full(real.shape, fill, dtype=np.int64)
    result[real] = values[keep]  # both sides run through the rows in order
    return result, lengths


def ended(values: Ids, lengths: Ids, end: int, fill: int) -> tuple[Ids, Ids]:
    """The rows with `end` after their last entry."""
    longer = np.concatenate([values, np.full((len(values), 1), fill, dtype=np.int64)], axis=1)
    longer[np.arange(len(values)), lengths] = end
    return longer, lengths + 1


def shifted_right(targets: Ids, start: int) -> Ids:
    """What the decoder reads when it is to write `targets`: the start token, then each token but the last."""
    shifted = np.roll(targets, 1, axis=1)
    shifted[:, 0] = start
    return shifted


def start_token(config: Any, tokenizer: Any) -> int:
    """The token that the decoder begins with. Raises ModelError."""
    start = getattr(config, "decoder_start_token_id", None)
    start = tokenizer.pad_token_id if start is None else start
    if start is None:
        raise ModelError(
            "the model has no decoder_start_token_id and the tokenizer no padding token, so the decoder cannot begin; "
            "set model.architecture.decoder_start_token_id"
        )
    return int(start)


def end_token(tokenizer: Any, objective: str) -> int:
    """The token that ends a text: eos, else sep. Raises ModelError."""
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end is None:
        raise ModelError(f"the tokenizer has no eos or sep token, which ends a text of the objective {objective}; set eos_token")
    return int(end)


def padding_token(tokenizer: Any) -> int:
    """The token that fills a batch. Raises ModelError."""
    if tokenizer.pad_token_id is None:
        raise ModelError("the tokenizer has no padding token, which batches of unequal length need; set pad_token")
    return int(tokenizer.pad_token_id)


def taught(source: tuple[Ids, Ids], target: tuple[Ids, Ids], start: int) -> dict[str, Any]:
    """A batch for teacher forcing: the source, and the target as labels and, one to the right, as decoder input.

    `source` and `target` are rows, filled up on the right, with their lengths. No mask is needed for the decoder: it
    is causal, so that what fills a row comes after everything that is asked.
    """
    import torch

    ids, lengths = source
    written, targets = target
    labels = np.where(within(targets, written.shape[1]), written, IGNORED)
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(within(lengths, ids.shape[1]).astype(np.int64)),
        "decoder_input_ids": torch.from_numpy(shifted_right(written, start)),
        "labels": torch.from_numpy(labels),
    }
