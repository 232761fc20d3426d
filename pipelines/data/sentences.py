"""Text to pretrain on with its sentences kept apart, and the layout that an objective asks for.

A corpus is three flat arrays, tokenised once and mapped from disk afterwards: token ids, where each sentence begins,
and with which sentence each document begins. From it come spans: neighbouring sentences of one document, as many as
fit, each sentence in one span. Objectives on pairs of segments (Devlin et al. 2019, section 3.1,
arxiv.org/abs/1810.04805) cut spans in two and borrow from other documents.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import DataError, DiskFull
from pipelines.core.files import made_once
from pipelines.data.packing import Blocks, pack
from pipelines.data.tokenising import TokenisedDocuments, tokenised

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """Tokens of many documents, one after another."""

    tokens: npt.NDArray[np.int32]
    """(tokens,)"""
    sentences: Offsets
    """Where each sentence begins among the tokens, and at the end their number (sentences + 1,)."""
    documents: Offsets
    """Which sentence each document begins with, and at the end their number (documents + 1,)."""


def read_sentences(
    tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], cache: Path, key: str, processes: int | None = None
) -> Corpus:
    """The corpus of `texts`, mapped from a folder in `cache` that `key` names.

    `key` must change with the texts and with the tokenizer. A folder that is there is not made again. `processes` is
    for `tokenised`. Raises DataError.
    """
    name = hashlib.sha256(f"{key}\nsentences".encode()).hexdigest()[:32]
    folder = cache / f"sentences-{name}"

    def make() -> None:
        write_corpus(folder, tokenised(tokenizer, texts, processes, sentences=True))

    return made_once(folder, partial(open_corpus, folder), make)


class Spans:
    """Spans of sentences as the rows of a data set: neighbours from one document, at least two, at most `length`
    tokens.

    A sentence of more than half of `length` is cut into equal parts, which count as sentences. What is left of a
    document and is one sentence only is left out.
    """

    def __init__(self, corpus: Corpus, length: int) -> None:
        self.corpus = corpus
        self.length = length
        self.bounds, self.documents = _shortened(corpus, max(length // 2, 1))
        self.first, self.last, self.document = _spans(self.bounds, self.documents, length)
        if not len(self.first):
            raise DataError(
                f"the text has no document of two sentences that fit into {length} tokens; give longer documents"
            )

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, position: int) -> dict[str, Any]:
        """`input_ids` (tokens,), `sentences`: where each begins in them and their number, and what they stem from."""
        bounds = self.bounds[self.first[position] : self.last[position] + 1]
        ids = np.asarray(self.corpus.tokens[bounds[0] : bounds[-1]])
        return {"input_ids": ids, "sentences": bounds - bounds[0], "span": position, "spans": self}

    @cached_property
    def lengths(self) -> Offsets:
        """Tokens of each span (spans,)."""
        return self.bounds[self.last] - self.bounds[self.first]

    @property
    def tokens(self) -> int:
        """Tokens of all spans."""
        return int(self.lengths.sum())

    @cached_property
    def of_document(self) -> Offsets:
        """The first span of each document, and at the end their number (documents + 1,)."""
        return np.searchsorted(self.document, np.arange(len(self.documents)))

    def others(self, position: int) -> tuple[int, int]:
        """(first, one past the last) of the spans of the document that span `position` belongs to."""
        document = self.document[position]
        return int(self.of_document[document]), int(self.of_document[document + 1])

    def onward(self, position: int, sentence: int, most: int) -> npt.NDArray[np.int32]:
        """Tokens from one `sentence` of a span to the end of a later one in its document, at most `most` in all."""
        start = self.first[position] + sentence
        end = self.documents[self.document[position] + 1]
        last = int(np.searchsorted(self.bounds[start : end + 1], self.bounds[start] + most, side="right")) - 1
        stop = self.bounds[start + last] if last else self.bounds[start] + most
        return np.asarray(self.corpus.tokens[self.bounds[start] : stop])


def _shortened(corpus: Corpus, most: int) -> tuple[Offsets, Offsets]:
    """`sentences` and `documents` of a corpus whose sentences of more than `most` tokens are cut into equal parts."""
    lengths = np.diff(corpus.sentences)
    parts = -(-lengths // most)
    of = np.repeat(np.arange(len(lengths)), parts)
    before = np.concatenate([[0], np.cumsum(parts)])
    part = np.arange(len(of)) - before[of]
    up = np.where(of % 2, parts[of] - 1, 0)  # no longer parts first or last: that would tell which is which
    bounds = corpus.sentences[of] + (lengths[of] * part + up) // parts[of]
    return np.append(bounds, corpus.sentences[-1]), before[corpus.documents]


def _spans(bounds: Offsets, documents: Offsets, length: int) -> tuple[Offsets, Offsets, Offsets]:
    """First sentence, one past the last, and document of every span, filled one after another.

    A sentence that no longer fits begins the next span, and long ones fit less often: first sentences are longer than
    last ones. Every other document is filled from its end, where it is the other way round, so that over all of them
    lengths do not tell a first segment from a second.
    """
    spans: list[tuple[int, int, int]] = []
    forth = np.searchsorted(bounds, bounds + length, side="right") - 1  # where a span from each sentence must end
    back = np.searchsorted(bounds, bounds - length, side="left")  # where one that ends before each must begin
    reach, origin, ends = forth.tolist(), back.tolist(), documents.tolist()
    for document in range(len(ends) - 1):
        start, end = ends[document], ends[document + 1]
        found: list[tuple[int, int, int]] = []
        while start < end and document % 2 == 0:
            stop = min(reach[start], end)
            found.append((start, stop, document))
            start = stop
        while start < end and document % 2 == 1:
            begin = max(origin[end], start)
            found.append((begin, end, document))
            end = begin
        spans += sorted(each for each in found if each[1] - each[0] > 1)
    first, last, document_of = np.asarray(spans, dtype=np.int64).reshape(-1, 3).T
    return first, last, document_of


def open_corpus(folder: Path) -> Corpus | None:
    """The corpus in a complete folder."""
    try:
        tokens = np.memmap(folder / "tokens.bin", dtype=np.int32, mode="r")
        sentences = np.load(folder / "sentences.npy", mmap_mode="r", allow_pickle=False)
        documents = np.load(folder / "documents.npy", mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):
        return None
    whole = len(documents) > 1 and sentences[-1] == len(tokens) and documents[-1] == len(sentences) - 1
    return Corpus(tokens, sentences, documents) if whole else None


def write_corpus(folder: Path, parts: Iterable[TokenisedDocuments]) -> None:
    """Write a corpus, which appears complete or not at all. Raises DataError when it is empty, and DiskFull."""
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    lengths: list[Offsets] = []
    counts: list[Offsets] = []
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        with open(temporary / "tokens.bin", "wb") as out:
            for ids, of_documents, of_sentences in parts:
                out.write(ids.tobytes())
                lengths.append(of_sentences)
                counts.append(of_documents)
            out.flush()
            os.fsync(out.fileno())
        if not sum(map(len, lengths)):
            raise DataError("the text holds no token; give a data set with text in it")
        for name, each in (("sentences", lengths), ("documents", counts)):
            np.save(temporary / f"{name}.npy", np.concatenate([[0], np.cumsum(np.concatenate(each))]))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"the disk of {folder.parent} is full; free space, or set FINERY_HOME elsewhere") from None
        if open_corpus(folder) is None:  # else another run was faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def lay_out(
    layout: Literal["blocks", "stream", "sentences"],
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    length: int,
    cache: Path,
    key: str,
    processes: int | None = None,
) -> Blocks | Spans:
    """Examples of `length` tokens of the text each, those of `blocks` between [CLS] and [SEP] in addition.

    `key` must change with the texts and with the tokenizer, as for `pack`. Raises DataError.
    """
    if layout == "sentences":
        return Spans(read_sentences(tokenizer, texts, cache, key, processes), length)
    return Blocks(pack(tokenizer, texts, length + 2 if layout == "blocks" else length, cache, key, layout, processes))
