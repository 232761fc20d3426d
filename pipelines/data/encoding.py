"""Labelled texts as token ids: tokenised once, kept as columns, padded when a batch is put together.

Columns are arrays or lists, one for each thing that is known of a row, so that rows are chosen by their positions.
Texts and pairs of texts are cut to one length together; sources and targets each to a length of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Rows
from pipelines.data.ragged import Ragged, length_of_batch

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What is known of the rows of one split; what is neither a list nor an array is said of all of them."""

    input_ids: Ragged
    """Token ids of each row."""
    token_type_ids: Ragged | None
    """Which of the two texts a token belongs to; None where the model has no segments."""
    lengths: npt.NDArray[np.int64]
    """Tokens of each row."""
    truncated: int
    """Rows that were longer than the limit and lost their end."""

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, position: int) -> dict[str, Any]:
        example: dict[str, Any] = {"input_ids": self.input_ids[position]}
        if self.token_type_ids is not None:
            example["token_type_ids"] = self.token_type_ids[position]
        return example

    def select(self, positions: Sequence[int] | npt.NDArray[np.int64]) -> Self:
        """The rows at `positions`, in that order. Counts stay those of the whole."""
        chosen = np.asarray(positions, dtype=np.int64)
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        picked: dict[str, Any] = {
            name: column[chosen] for name, column in columns.items() if isinstance(column, np.ndarray)
        }
        picked |= {name: column.take(chosen) for name, column in columns.items() if isinstance(column, Ragged)}
        places = chosen.tolist()
        picked |= {
            name: [column[place] for place in places] for name, column in columns.items() if isinstance(column, list)
        }
        return replace(self, **picked)


@dataclass(frozen=True, kw_only=True)
class PartedColumns(Columns):
    """Rows that are read in several parts where they are long. Most are one part."""

    rows: npt.NDArray[np.int64]
    """The row that each part belongs to: its position, from 0."""

    @property
    def index(self) -> list[int]:
        """The row of each part: parts of one row are set aside together."""
        return [int(row) for row in self.rows]


CHUNK = 2_000
"""Rows that are tokenised at a time: enough to keep every core busy, few enough to bound memory."""


@dataclass(frozen=True, kw_only=True)
class EncodedRows(Columns):
    """Tokenised rows of one split, as columns."""

    labels: list[Any] | Ragged | None
    """A class, a number, or ids of what the text is to become; None where the labels are not public."""
    index: list[int]
    """Row numbers in the file."""

    def __getitem__(self, position: int) -> dict[str, Any]:
        example = super().__getitem__(position) | {"index": self.index[position]}
        return example if self.labels is None else example | {"labels": self.labels[position]}


def encode(tokenizer: PreTrainedTokenizerBase, rows: Rows, max_length: int) -> EncodedRows:
    """Tokenise `rows`, special tokens included. Longer rows lose tokens from the end of their longer text."""
    segments = "token_type_ids" in tokenizer.model_input_names
    input_ids: list[Ragged] = []
    token_type_ids: list[Ragged] = []
    truncated = 0
    with settings_kept(tokenizer):
        for start in range(0, len(rows), CHUNK):
            texts = list(rows.texts[start : start + CHUNK])
            pairs = None if rows.pairs is None else list(rows.pairs[start : start + CHUNK])
            batch = tokenizer(
                texts,
                pairs,
                truncation=True,
                max_length=max_length,
                padding=False,
                return_token_type_ids=segments,
                return_attention_mask=False,
                verbose=False,
            )
            input_ids.append(Ragged.of(batch["input_ids"]))
            if segments:
                token_type_ids.append(Ragged.of(batch["token_type_ids"]))
            truncated += _count_truncated(tokenizer, batch, texts, pairs, max_length)
    ids = Ragged.joined(input_ids)
    return EncodedRows(
        input_ids=ids,
        token_type_ids=Ragged.joined(token_type_ids) if segments else None,
        labels=None if rows.labels is None else list(rows.labels),
        index=list(rows.index),
        lengths=ids.lengths,
        truncated=truncated,
    )


def read_part(tokenizer: PreTrainedTokenizerBase, rows: Rows, max_length: int) -> Rows:
    """`rows` with each text ended where `encode` ends it: what a model of so many tokens reads, as text.

    Rows of several texts other than a pair stay as they are. Without offsets the kept tokens are decoded, which may
    change spaces and case.
    """
    if type(rows) is not Rows:
        return rows
    texts, pairs = list(rows.texts), None if rows.pairs is None else list(rows.pairs)
    fast = bool(getattr(tokenizer, "is_fast", False))
    with settings_kept(tokenizer):
        for start in range(0, len(rows), CHUNK):
            batch = tokenizer(
                texts[start : start + CHUNK],
                None if pairs is None else pairs[start : start + CHUNK],
                truncation=True,
                max_length=max_length,
                padding=False,
                return_token_type_ids=False,
                return_attention_mask=False,
                verbose=False,
            )
            for place, ids in enumerate(batch["input_ids"], start=start):
                if not fast:
                    if pairs is None and len(ids) == max_length:
                        texts[place] = tokenizer.decode(ids, skip_special_tokens=True)
                    continue
                encoding = batch.encodings[place - start]
                if not encoding.overflowing:
                    continue
                ends = [0, 0]
                for (_, end), sequence in zip(encoding.offsets, encoding.sequence_ids, strict=True):
                    if sequence is not None:
                        ends[sequence] = max(ends[sequence], end)
                texts[place] = texts[place][: ends[0]]
                if pairs is not None:
                    pairs[place] = pairs[place][: ends[1]]
    return replace(rows, texts=texts, pairs=pairs)


@contextmanager
def settings_kept(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
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


def _count_truncated(
    tokenizer: PreTrainedTokenizerBase, batch: Any, texts: list[str], pairs: list[str] | None, max_length: int
) -> int:
    """How many rows of the batch were cut."""
    if batch.encodings is not None:
        return sum(bool(encoding.overflowing) for encoding in batch.encodings)
    full = [row for row, ids in enumerate(batch["input_ids"]) if len(ids) == max_length]  # only these can have been cut
    if not full:
        return 0
    chosen = [texts[row] for row in full], None if pairs is None else [pairs[row] for row in full]
    uncut = tokenizer(*chosen, truncation=False, padding=False, return_attention_mask=False, verbose=False)
    return sum(len(ids) > max_length for ids in uncut["input_ids"])


STEP_OF_LENGTHS = 8
"""Between the lengths of batches on a GPU, whose products of halves are made of eights."""


def few_lengths(limit: int) -> dict[str, Any]:
    """What has `collate` pad to few lengths, none above `limit`, where there is a GPU, which then replays what it
    recorded (`trainers/step_graphs`); elsewhere padding is only work."""
    import torch

    return {"pad_to_multiple_of": STEP_OF_LENGTHS, "at_most": limit} if torch.cuda.is_available() else {}


def collate(
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[dict[str, Any]],
    pad_to_multiple_of: int | None = None,
    at_most: int | None = None,
) -> dict[str, Tensor]:
    """A batch as long as its longest example: `input_ids`, `attention_mask`, and segments and labels if there are.

    With `pad_to_multiple_of` it is longer up to such a multiple, or up to `at_most` where that is nearer.
    """
    import torch

    lengths = np.fromiter((len(example["input_ids"]) for example in examples), dtype=np.int64, count=len(examples))
    length = length_of_batch(int(lengths.max()), pad_to_multiple_of, at_most)
    real = np.arange(length)[None, :] < lengths[:, None]  # (batch, length)
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


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, rows: Rows, max_source_length: int, max_target_length: int
) -> EncodedRows:
    """Tokenise the texts of `rows` and, as labels, the texts that they are to become; special tokens included.

    The length of an example is that of both together, so that batches of similar length have little padding in
    either. Segments are left out: the models that write have none.
    """
    sources, truncated = encode_texts(tokenizer, rows.texts, max_source_length, "text")
    targets, cut = encode_texts(tokenizer, rows.labels or (), max_target_length, "text_target")
    return EncodedRows(
        input_ids=sources,
        token_type_ids=None,
        labels=targets,
        index=list(rows.index),
        lengths=sources.lengths + targets.lengths,
        truncated=int(np.count_nonzero(truncated | cut)),
    )


def encode_texts(tokenizer: PreTrainedTokenizerBase, texts: Any, max_length: int, role: str) -> tuple[Ragged, Any]:
    """Ids of every text in its role, and which texts lost their end (texts,)."""
    ids: list[Ragged] = []
    cut: list[int] = []
    with settings_kept(tokenizer):
        for start in range(0, len(texts), CHUNK):
            batch = tokenizer(
                **{role: list(texts[start : start + CHUNK])},
                truncation=True,
                max_length=max_length,
                padding=False,
                return_token_type_ids=False,
                return_attention_mask=False,
                verbose=False,
            )
            full = [
                row for row, tokens in enumerate(batch["input_ids"]) if len(tokens) == max_length
            ]  # only these can be cut
            cut += [
                start + full[place]
                for place in _longer(tokenizer, [texts[start + row] for row in full], max_length, role)
            ]
            ids.append(Ragged.of(batch["input_ids"]))
    flags = np.zeros(len(texts), dtype=np.bool_)
    flags[cut] = True
    return Ragged.joined(ids), flags


def _longer(tokenizer: PreTrainedTokenizerBase, texts: list[str], max_length: int, role: str) -> list[int]:
    """Positions of the texts that have more than `max_length` tokens."""
    if not texts:
        return []
    uncut = tokenizer(**{role: texts}, truncation=False, padding=False, return_attention_mask=False, verbose=False)[
        "input_ids"
    ]
    return [place for place, tokens in enumerate(uncut) if len(tokens) > max_length]


def check_offsets(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer that does not say which characters its tokens stand for. Raises ModelError."""
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            f"the tokenizer {type(tokenizer).__name__} does not tell which characters its tokens stand for, "
            "which this task needs; "
            "use a fast tokenizer"
        )
