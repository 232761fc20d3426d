"""Texts to tokens, by several processes where there is enough to do; what comes out does not depend on how many.

Texts are cut into chunks by their number and their letters alone. Each chunk is tokenised by itself, here or in another
process, and comes back in its turn as flat arrays. A process holds a chunk at a time, and no more than two chunks a
process are on their way, so memory stays the same however long the text is.

A sentence ends behind `.`, `!`, `?` or `…`, with the quotes and brackets that close there, where white space follows
and the next letter is not a small one; and at a blank line. A single line end ends nothing, for text may be wrapped.
Abbreviations before a capital, such as "Mr. Smith", are cut too.
"""

from __future__ import annotations

import os
import re
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from multiprocessing import current_process, get_context
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import ModelError, ProcessLost
from pipelines.core.signals import die_with_parent

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

CHUNK = 1_000
"""Documents that are tokenised at a time,"""
CHUNK_LETTERS = 1 << 20
"""or fewer, once they have so many letters together."""
WORTH = 8 << 20
"""Letters that are tokenised here before other processes are started, which takes them a second."""


ENDS = re.compile(r"""(?<=[.!?…])["'”’»«)\]_]*(?=\s+(?![a-z\s]))|(?=\n[^\S\n]*\n)""")


def sentence_ends(text: str) -> list[int]:
    """Positions behind each sentence but the last, before the white space that follows, ascending."""
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    return [end for end in dict.fromkeys(match.end() for match in ENDS.finditer(text)) if first < end < last]


class TokenisedDocuments(NamedTuple):
    """A chunk of documents, one after another; those without a token are left out."""

    ids: npt.NDArray[np.int32]
    """(tokens,)"""
    documents: npt.NDArray[np.int64]
    """Tokens of each document (documents,); where sentences are asked for, sentences of each."""
    sentences: npt.NDArray[np.int64]
    """Tokens of each sentence (sentences,); empty where they are not asked for."""


def chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts, CHUNK at a time, or fewer where they are long."""
    chunk: list[str] = []
    letters = 0
    for text in texts:
        chunk.append(text)
        letters += len(text)
        if len(chunk) == CHUNK or letters >= CHUNK_LETTERS:
            yield chunk
            chunk, letters = [], 0
    if chunk:
        yield chunk


def each_once(texts: list[str]) -> tuple[list[str], list[int]]:
    """The different texts in their order, and which of them each text is: a passage stands in the data once for each of
    its questions, and is tokenised once."""
    places: dict[str, int] = {}
    which = [places.setdefault(text, len(places)) for text in texts]
    return list(places), which


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Tokenising:
    """A tokenizer at work, alone or in several processes; to be closed.

    `processes` are started at once where a number is given; by default as many as the machine has cores, once there
    turns out to be enough text. With `sentences` each document is cut into its sentences too.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, processes: int | None = None, sentences: bool = False
    ) -> None:
        if sentences and not getattr(tokenizer, "is_fast", False):
            raise ModelError(
                "pairs of sentences need a tokenizer of the tokenizers library (a tokenizer.json); convert it first"
            )
        self._encode = _encoder(tokenizer)
        self._sentences = sentences
        self._asked = processes
        self._backend = _description(tokenizer)
        self._letters = 0
        self._pool: ProcessPoolExecutor | None = None

    def __call__(self, texts: Iterable[str]) -> Iterator[TokenisedDocuments]:
        """The tokens of each chunk of `texts`, in their order. Raises ProcessLost where a process was killed."""
        waiting: deque[Future[TokenisedDocuments]] = deque()
        for chunk in chunks(texts):
            self._letters += sum(map(len, chunk))
            if (processes := self._processes()) == 1:
                yield tokens_of(self._encode, chunk, self._sentences)
                continue
            try:
                waiting.append(self._workers(processes).submit(_in_worker, chunk))
                if len(waiting) >= 2 * processes:
                    yield waiting.popleft().result()
            except BrokenProcessPool:
                raise ProcessLost(LOST) from None
        while waiting:
            try:
                yield waiting.popleft().result()
            except BrokenProcessPool:
                raise ProcessLost(LOST) from None

    def _processes(self) -> int:
        if self._backend is None or current_process().daemon:  # the workers of a DataLoader may have no children
            return 1
        return self._asked or (1 if self._letters < WORTH and self._pool is None else cores())

    def _workers(self, processes: int) -> ProcessPoolExecutor:
        if self._pool is None:
            assert self._backend is not None
            begin = partial(_begin_worker, self._backend, self._sentences, os.getpid())
            self._pool = ProcessPoolExecutor(processes, get_context("spawn"), begin)
        return self._pool

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


LOST = (
    "a process that tokenises was killed, most often because the machine's memory ran out; lower dataset_num_proc, or "
    "give the machine more memory"
)


def tokenised(
    tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], processes: int | None = None, sentences: bool = False
) -> Iterator[TokenisedDocuments]:
    """The tokens of each chunk of `texts`, as `Tokenising` says."""
    with closing(Tokenising(tokenizer, processes, sentences)) as tokenising:
        yield from tokenising(texts)


Encoded = tuple[list[list[int]], list[list[tuple[int, int]]] | None]
"""Ids of each text, and where its tokens begin and end in it where that was asked for."""
Encode = Callable[[list[str], bool], Encoded]


def _encoder(tokenizer: PreTrainedTokenizerBase) -> Encode:
    """What a tokenizer of transformers makes of texts, without special tokens."""

    def encode(texts: list[str], offsets: bool) -> Encoded:
        encoded = tokenizer(
            texts,
            add_special_tokens=False,
            truncation=False,
            padding=False,
            return_offsets_mapping=offsets,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return encoded["input_ids"], encoded["offset_mapping"] if offsets else None

    return encode


def _description(tokenizer: PreTrainedTokenizerBase) -> tuple[str, bool] | None:
    """What another process needs to do as this tokenizer does; None where its own code does more than its
    tokenizer.json says."""
    if not getattr(tokenizer, "is_fast", False) or not type(tokenizer).__module__.startswith("transformers."):
        return None
    return tokenizer.backend_tokenizer.to_str(), bool(tokenizer.split_special_tokens)


def tokens_of(encode: Encode, texts: list[str], sentences: bool) -> TokenisedDocuments:
    """The tokens of one chunk."""
    different, which = each_once(texts)
    ids, offsets = encode(different, sentences)
    if offsets is None:
        encoded = [np.asarray(each, dtype=np.int32) for each in ids]
        arrays = [encoded[at] for at in which if len(encoded[at])]
        lengths = np.asarray([len(each) for each in arrays], dtype=np.int64)
        return TokenisedDocuments(_joined(arrays, np.int32), lengths, np.empty(0, dtype=np.int64))
    parts = [
        (np.asarray(each, dtype=np.int32), _sentence_lengths(len(each), np.asarray(places)[:, 0], text))
        if each
        else None
        for each, places, text in zip(ids, offsets, different, strict=True)
    ]
    cut = [part for at in which if (part := parts[at]) is not None]
    counts = np.asarray([len(lengths) for _, lengths in cut], dtype=np.int64)
    return TokenisedDocuments(
        _joined([each for each, _ in cut], np.int32), counts, _joined([lengths for _, lengths in cut], np.int64)
    )


def _joined(arrays: list[npt.NDArray[Any]], kind: Any) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=kind)


def _sentence_lengths(tokens: int, starts: npt.NDArray[np.int64], text: str) -> npt.NDArray[np.int64]:
    """The tokens of each sentence of one document, none of them empty; a token belongs where it begins."""
    ends = np.searchsorted(starts, sentence_ends(text), side="left")
    return np.diff(np.unique(np.concatenate([[0], ends, [tokens]])))


_worker: Callable[[list[str]], TokenisedDocuments] | None = None
"""In a process that tokenises: its work."""


def _begin_worker(description: tuple[str, bool], sentences: bool, parent: int) -> None:
    """Be a process that tokenises: with one thread, and ended when its parent is."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends it
    die_with_parent(signal.SIGKILL, parent)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    backend: Tokenizer = Tokenizer.from_str(description[0])
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = description[1]

    def encode(texts: list[str], offsets: bool) -> Encoded:
        encodings = backend.encode_batch(texts, add_special_tokens=False)
        return [each.ids for each in encodings], [each.offsets for each in encodings] if offsets else None

    def work(chunk: list[str]) -> TokenisedDocuments:
        return tokens_of(encode, chunk, sentences)

    _worker = work


def _in_worker(chunk: list[str]) -> TokenisedDocuments:
    assert _worker is not None
    return _worker(chunk)
