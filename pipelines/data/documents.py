"""Documents as token ids, with the bytes of text that each token stands for.

A token's bytes are those of the original text, in UTF-8, from the end of the token before it to its own end; the last
token takes what remains. So the bytes of a document's tokens add up to the bytes of the document, for every tokenizer:
white space or accents that a tokenizer drops are counted with the token that stands there. This is what makes bits
per byte comparable over vocabularies (Gao et al. 2020, "The Pile", section 3.1, arxiv.org/abs/2101.00027).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import DataError, ModelError
from pipelines.data.tokenising import chunks, each_once

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Documents:
    """Tokens of many documents, one after another; documents without a token are left out."""

    tokens: Ints
    """(tokens,)"""
    sizes: Ints
    """Bytes of each token (tokens,)."""
    starts: Ints
    """Where each document begins among the tokens, and at the end their number (documents + 1,)."""
    rows: Ints
    """Which of the given texts each document is (documents,)."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def mean_bytes(self, vocabulary: int) -> npt.NDArray[np.float64]:
        """For each id, the bytes that it stands for here, on average; 0 where it does not occur (vocabulary,)."""
        total = np.bincount(self.tokens, weights=self.sizes, minlength=vocabulary)
        return total / np.maximum(np.bincount(self.tokens, minlength=vocabulary), 1)


def read_documents(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Documents:
    """The texts as tokens without special ones. Raises DataError without a token, ModelError for slow tokenizers."""
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            "bytes of tokens need a tokenizer of the tokenizers library (a tokenizer.json); convert it first"
        )
    tokens: list[Ints] = []
    sizes: list[Ints] = []
    rows: list[int] = []
    number = 0
    for chunk in chunks(texts):
        different, which = each_once(chunk)
        encoded = _encoded(tokenizer, different, return_offsets_mapping=True)
        for at in which:
            ids, places = encoded["input_ids"][at], encoded["offset_mapping"][at]
            if ids:
                tokens.append(np.asarray(ids, dtype=np.int64))
                sizes.append(_bytes_of(different[at], np.asarray(places, dtype=np.int64)[:, 1]))
                rows.append(number)
            number += 1
    if not rows:
        raise DataError(f"the {number} texts hold no token; choose a split with text in it")
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids in tokens])])
    return Documents(np.concatenate(tokens), np.concatenate(sizes), starts, np.asarray(rows))


def token_streams(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Iterator[tuple[Ints, Ints]]:
    """(tokens, where each document begins) for each chunk of texts, without offsets; documents without tokens stay."""
    for chunk in chunks(texts):
        different, which = each_once(chunk)
        encoded = [np.asarray(each, dtype=np.int64) for each in _encoded(tokenizer, different)["input_ids"]]
        ids = [encoded[at] for at in which]
        lengths = np.asarray([len(each) for each in ids])
        yield np.concatenate(ids), np.cumsum(lengths) - lengths


def _encoded(tokenizer: PreTrainedTokenizerBase, texts: list[str], **others: bool) -> Any:
    return tokenizer(
        texts,
        add_special_tokens=False,
        truncation=False,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
        **others,
    )


def _bytes_of(text: str, ends: Ints) -> Ints:
    """Bytes of each token, from the characters after which the tokens end."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    widths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    before = np.concatenate([[0], np.cumsum(widths)])
    ends = np.maximum.accumulate(ends)
    ends[-1] = len(points)
    return np.diff(before[ends], prepend=0)
