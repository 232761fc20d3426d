"""Questions with options as token ids: one sequence an option, tokenised once, padded when a batch is put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipelines.data.encoding import CHUNK, collate, encode
from pipelines.data.multiple_choice import ChoiceRows
from pipelines.protocols import Rows

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ChoiceExamples:
    """Tokenised questions, each with its options as columns."""

    input_ids: list[list[npt.NDArray[np.int32]]]
    """Of each question the sequences of its options."""
    token_type_ids: list[list[npt.NDArray[np.int32]]] | None
    """None where the model has no segments."""
    labels: list[int] | None
    """None where the answers are not public."""
    index: list[int]
    """Row numbers in the file."""
    lengths: npt.NDArray[np.int64]
    """Tokens of each question's longest sequence."""
    truncated: int
    """Sequences that were longer than the limit and lost the end of their longer text."""

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, position: int) -> dict[str, Any]:
        example: dict[str, Any] = {"input_ids": self.input_ids[position], "index": self.index[position]}
        if self.token_type_ids is not None:
            example["token_type_ids"] = self.token_type_ids[position]
        if self.labels is not None:
            example["labels"] = self.labels[position]
        return example

    def select(self, positions: Sequence[int] | npt.NDArray[np.int64]) -> ChoiceExamples:
        """The questions at `positions`, in that order. `truncated` stays that of the whole."""
        chosen = [int(position) for position in positions]
        types = self.token_type_ids
        return ChoiceExamples(
            [self.input_ids[position] for position in chosen],
            None if types is None else [types[position] for position in chosen],
            None if self.labels is None else [self.labels[position] for position in chosen],
            [self.index[position] for position in chosen],
            self.lengths[np.asarray(chosen, dtype=np.int64)],
            self.truncated,
        )


def encode_choices(tokenizer: Any, rows: ChoiceRows, max_length: int) -> ChoiceExamples:
    """Tokenise each option of `rows` beside the text that all of them share, special tokens included.

    Sequences longer than `max_length` lose tokens from the end of their longer text, which is the context.
    """
    ids: list[list[npt.NDArray[np.int32]]] = []
    types: list[list[npt.NDArray[np.int32]]] = []
    truncated = 0
    choices = rows.choices
    at_once = max(1, CHUNK // max(choices, 1))
    for start in range(0, len(rows), at_once):
        shared = [text for text in rows.texts[start : start + at_once] for _ in range(choices)]
        beside = [option for row in rows.options[start : start + at_once] for option in row]
        found = encode(tokenizer, Rows(shared, beside, None, range(len(shared))), max_length)
        ids += _grouped(found.input_ids, choices)
        if found.token_type_ids is not None:
            types += _grouped(found.token_type_ids, choices)
        truncated += found.truncated
    longest = (max(len(sequence) for sequence in question) for question in ids)
    labels: Any = None if rows.labels is None else list(rows.labels)
    return ChoiceExamples(ids, types or None, labels, list(rows.index), np.fromiter(longest, np.int64, len(ids)), truncated)


def _grouped(sequences: list[list[int]], choices: int) -> list[list[npt.NDArray[np.int32]]]:
    arrays = [np.asarray(sequence, dtype=np.int32) for sequence in sequences]
    return [arrays[start : start + choices] for start in range(0, len(arrays), choices)]


def collate_choices(tokenizer: Any, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch as long as its longest sequence: `input_ids` and the like (batch, choices, length), `labels` (batch,)."""
    import torch

    keys = [key for key in ("input_ids", "token_type_ids") if key in examples[0]]
    choices = len(examples[0]["input_ids"])
    flat: list[dict[str, Any]] = [{key: example[key][choice] for key in keys} for example in examples for choice in range(choices)]
    batch = {key: value.reshape(len(examples), choices, -1) for key, value in collate(tokenizer, flat).items()}
    if "labels" in examples[0]:
        batch["labels"] = torch.tensor([example["labels"] for example in examples])
    return batch
