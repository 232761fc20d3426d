"""Examples of different lengths as arrays of one shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""The label of a position that is not asked for."""


def stacked(rows: Sequence[npt.ArrayLike], fill: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The rows, filled up on the right with `fill`, and where they are real, both (batch, length)."""
    arrays = [np.asarray(row) for row in rows]
    lengths = np.asarray([len(row) for row in arrays])
    real = np.arange(lengths.max())[None, :] < lengths[:, None]
    filled = np.full(real.shape, fill, dtype=np.int64)
    filled[real] = np.concatenate(arrays)
    return filled, real


def draws_of(examples: Sequence[Mapping[str, Any]]) -> npt.NDArray[np.int64]:
    """The number of each example in this epoch (batch,)."""
    return np.asarray([example["draw"] for example in examples], dtype=np.int64)


def padding_of(tokenizer: Any) -> int:
    """The id that fills rows up. Raises ModelError."""
    if tokenizer.pad_token_id is None:
        raise ModelError("the tokenizer has no padding token, which batches of unequal length need; set pad_token")
    return int(tokenizer.pad_token_id)


def special_ids(tokenizer: Any) -> npt.NDArray[np.bool_]:
    """For each id, whether it is a special token (vocab,)."""
    special = np.zeros(len(tokenizer), dtype=np.bool_)
    special[list(tokenizer.all_special_ids)] = True
    return special


def tensors(**arrays: npt.NDArray[Any]) -> dict[str, Tensor]:
    """The arrays as a batch."""
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}
