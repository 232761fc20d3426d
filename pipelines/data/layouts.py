"""How an objective wants its text: blocks, a stream, or spans of sentences, as a data set of `input_ids`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pipelines.data.packing import Blocks, pack
from pipelines.data.sentences import Spans, read_sentences


def lay_out(
    layout: Literal["blocks", "stream", "sentences"], tokenizer: Any, texts: Iterable[str], length: int, cache: Path,
    key: str,
) -> Blocks | Spans:
    """Examples of `length` tokens of the text each, those of `blocks` between [CLS] and [SEP] in addition.

    `key` must change with the texts and with the tokenizer, as for `pack`. Raises DataError.
    """
    if layout == "sentences":
        return Spans(read_sentences(tokenizer, texts, cache, key), length)
    return Blocks(pack(tokenizer, texts, length + 2 if layout == "blocks" else length, cache, key, layout))
