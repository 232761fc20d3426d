"""Examples of different lengths as arrays of one shape, and tables of the vocabulary that objectives look up.

Arrays are numpy's, (batch, length): what is masked, moved or cut is chosen by arithmetic on whole arrays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import IGNORED

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

Ids: TypeAlias = "npt.NDArray[np.int64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"
Luck: TypeAlias = "npt.NDArray[np.float64]"
"""Random numbers in [0, 1)."""


def padded(rows: Sequence[npt.ArrayLike], fill: int) -> tuple[Ids, Ids]:
    """The rows, filled up on the right with `fill`, (batch, length), and their lengths (batch,)."""
    from pipelines.data import ragged

    ids, real = ragged.padded(rows, fill)
    return ids, real.sum(axis=1)


def padded_and_real(rows: Sequence[npt.ArrayLike], fill: int) -> tuple[Ids, Flags]:
    """The rows, filled up on the right with `fill`, and where they are real, both (batch, length)."""
    ids, lengths = padded(rows, fill)
    return ids, within(lengths, ids.shape[1])


def draws_of(examples: Sequence[Mapping[str, Any]]) -> Ids:
    """The number of each example in this epoch (batch,)."""
    import numpy as np

    return np.asarray([example["draw"] for example in examples], dtype=np.int64)


def tensors(**arrays: npt.NDArray[Any]) -> dict[str, Tensor]:
    """The arrays as a batch."""
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def within(lengths: Ids, longest: int) -> Flags:
    """Where the rows are real, (batch, longest)."""
    import numpy as np

    real: Flags = np.arange(longest)[None, :] < lengths[:, None]
    return real


def squeezed(values: Ids, keep: Flags, fill: int) -> tuple[Ids, Ids]:
    """What is kept of each row, moved to the left, (batch, most kept), and how much it is (batch,)."""
    import numpy as np

    lengths = keep.sum(axis=1)
    real = within(lengths, int(lengths.max(initial=0)))
    result = np.full(real.shape, fill, dtype=np.int64)
    result[real] = values[keep]  # both sides run through the rows in order
    return result, lengths


def ended(values: Ids, lengths: Ids, end: int, fill: int) -> tuple[Ids, Ids]:
    """The rows with `end` after their last entry."""
    import numpy as np

    longer = np.concatenate([values, np.full((len(values), 1), fill, dtype=np.int64)], axis=1)
    longer[np.arange(len(values)), lengths] = end
    return longer, lengths + 1


def shifted_right(targets: Ids, start: int) -> Ids:
    """What the decoder reads when it is to write `targets`: the start token, then each token but the last."""
    import numpy as np

    shifted = np.roll(targets, 1, axis=1)
    shifted[:, 0] = start
    return shifted


def end_token(tokenizer: PreTrainedTokenizerBase, objective: str) -> int:
    """The token that ends a text: eos, else sep. Raises ModelError."""
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end is None:
        raise ModelError(
            f"the tokenizer has no eos or sep token, which ends a text of the objective {objective}; set eos_token"
        )
    return int(end)


def padding_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that fills a batch. Raises ModelError."""
    if tokenizer.pad_token_id is None:
        raise ModelError("the tokenizer has no padding token, which batches of unequal length need; set pad_token")
    return int(tokenizer.pad_token_id)


def taught(source: tuple[Ids, Ids], target: tuple[Ids, Ids], start: int) -> dict[str, Tensor]:
    """A batch for teacher forcing: the source, and the target as labels and, one to the right, as decoder input.

    `source` and `target` are rows, filled up on the right, with their lengths. No mask is needed for the decoder: it
    is causal, so that what fills a row comes after everything that is asked.
    """
    import numpy as np

    ids, lengths = source
    written, targets = target
    return tensors(
        input_ids=ids,
        attention_mask=within(lengths, ids.shape[1]).astype(np.int64),
        decoder_input_ids=shifted_right(written, start),
        labels=np.where(within(targets, written.shape[1]), written, IGNORED),
    )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> Flags:
    """For each id, whether it is a special token (vocab,)."""
    import numpy as np

    special = np.zeros(len(tokenizer), dtype=np.bool_)
    special[list(tokenizer.all_special_ids)] = True
    return special


SPACES = ("Ġ", "Ċ", "ĉ", "č", "\u2581", "\n", "\t", "\r")
"""How tokens with white space in front begin.

Byte-level space, line feed, tab, return; SentencePiece's space; white space itself.
"""


def continues_word(tokenizer: PreTrainedTokenizerBase) -> Flags:
    """For each id, whether that token goes on with a word. Raises ModelError where tokens do not show it."""
    import numpy as np

    backend = getattr(tokenizer, "backend_tokenizer", None)
    description = json.loads(backend.to_str()) if backend is not None else {}
    prefix = description.get("model", {}).get("continuing_subword_prefix")
    kind = description.get("model", {}).get("type")
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    special = set(tokenizer.all_special_ids)
    if kind == "WordPiece":
        table = [token is not None and token.startswith(prefix) for token in tokens]
    elif kind in ("BPE", "Unigram") and any(token is not None and token.startswith(SPACES) for token in tokens):
        table = [token is not None and not token.startswith(SPACES) for token in tokens]
    else:
        raise ModelError(
            "whole_word is true, but this tokenizer does not mark where words begin; leave whole_word out, or train a "
            "tokenizer of our own (tokenizer: {train: wordpiece})"
        )
    return np.asarray([flag and number not in special for number, flag in enumerate(table)], dtype=np.bool_)
