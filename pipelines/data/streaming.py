"""Text that is read, tokenised and packed while it is learnt from, in constant memory.

A stream is cut into windows: `buffer_size` documents, or fewer where they are long or the text ends there. A window is
tokenised and packed as a whole and lies in a file that every process maps; the examples in it are shuffled by (seed,
window) alone. When the text ends it is read again, and tokens that do not fill a block go on into the next window. So
example i is a function of the text, the tokenizer and the seed: it does not matter which process asks for it, what was
asked before, or how often the run was killed.

Where each window begins stands in `windows.jsonl` of the stream's folder, a line a window, written once the one before
it is whole. A resumed run opens the text there instead of reading all of it again; without the file it would read more
and get the same. Windows that are behind are deleted.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import DataError, FineryError
from pipelines.core.files import lock
from pipelines.data.packing import Blocks, Packer, open_blocks, write_blocks
from pipelines.data.randomness import uniforms
from pipelines.data.sentences import Spans, open_corpus, write_corpus
from pipelines.data.tokenising import Tokenising

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from pipelines.data.text_reader import Position

LETTERS = 1 << 25
"""A window ends once its documents have so many letters together, 32 million: some 100 MB while it is made."""
BEHIND = 2
"""Windows that are kept behind the one that is read."""
DIGITS = 10
"""Of a window's number in the name of its file."""
SHUFFLE = 0x5706
"""Stream of random numbers: the order of a window's examples; the number of the source is added."""


class Readable(Protocol):
    """Texts that know where they stand: `Texts` or `JoinedTexts`."""

    def __iter__(self) -> Iterator[str]: ...

    def position(self) -> Position:
        """Where the text behind the last one is found."""

    def read(self) -> tuple[int, int]:
        """(what was read, all there is); (0, 0) where that is not known."""


@dataclass(frozen=True)
class WindowStart:
    """Where a window begins: a line of `windows.jsonl`."""

    first: int = 0
    """The number of its first example."""
    position: Position | None = None
    """Where its first document is found; None is the beginning of the text."""
    rest: list[int] = field(default_factory=list)
    """Tokens of documents before it that did not fill a block."""
    documents: int = 0
    """Documents before it, counted again in each pass over the text."""
    tokens: int = 0
    """Of the examples before it, where examples differ in length."""
    passes: int = 0
    """Whole passes over the text before it."""
    share: float | None = 0.0
    """Of this pass, what was read before it; None where that cannot be told."""


@dataclass(frozen=True)
class _Window:
    number: int
    start: WindowStart
    examples: Blocks | Spans
    order: npt.NDArray[np.int64]


class StreamedExamples:
    """Examples of a stream by their number, 0, 1, 2 …; to be asked for in about this order, and to be closed.

    `open_texts` opens the text at a position. `length` are the tokens that an example takes from the text, `source` is
    the number of the stream among those of the stage. With `ahead` the next window is made while this one is read.
    """

    def __init__(
        self,
        open_texts: Callable[[Position | None], Readable],
        tokenizer: PreTrainedTokenizerBase,
        layout: Literal["blocks", "stream", "sentences"],
        length: int,
        folder: Path,
        *,
        seed: int,
        source: int = 0,
        buffer_size: int = 10_000,
        processes: int | None = None,
        ahead: bool = False,
    ) -> None:
        self._open_texts, self._tokenizer, self._layout, self._length = open_texts, tokenizer, layout, length
        self._folder, self._seed, self._source, self._buffer_size = folder, seed, source, buffer_size
        self._processes, self._ahead = processes, ahead
        self._firsts, self._places, self._end = [0], [-1], 0
        """Of each known window its first example and the offset of its line in the index; the index's length so far."""
        self._begin_in_process()

    def _begin_in_process(self) -> None:
        """What a process cannot take over from the one that it was forked from."""
        self._process = os.getpid()
        self._mutex = threading.RLock()
        self._opened: dict[int, _Window] = {}
        self._maker: ThreadPoolExecutor | None = None
        self._tokenising: Tokenising | None = None

    def __getitem__(self, number: int) -> dict[str, Any]:
        if self._process != os.getpid():
            self._begin_in_process()
        window = self._window_of(number)
        example: dict[str, Any] = window.examples[int(window.order[number - window.start.first])]
        return example

    def tokens(self, examples: int) -> int:
        """Tokens that the first `examples` take from the text."""
        if self._layout != "sentences":
            return examples * self._length
        if not examples:
            return 0
        window = self._window_of(examples - 1)
        spans = window.examples
        assert isinstance(spans, Spans)
        return window.start.tokens + int(spans.lengths[window.order[: examples - window.start.first]].sum())

    def epochs(self, examples: int) -> float:
        """How often the first `examples` go through the text; of a pass whose length is not known, nothing counts."""
        if not examples:
            return 0.0
        window = self._window_of(examples - 1)
        start, behind = window.start, self._firsts[window.number + 1]
        end = self._start(bisect_right(self._firsts, behind) - 1)  # behind windows without an example too
        if start.share is None:
            return float(start.passes)
        last = 1.0 if end.passes > start.passes else end.share or 0.0
        inside = (examples - start.first) / (end.first - start.first)
        return start.passes + start.share + (last - start.share) * inside

    def documents(self, examples: int) -> int | None:
        """How many documents from the first one on the first `examples` may stem from; None where it is all of them."""
        if not examples:
            return 0
        end = self._start(self._window_of(examples - 1).number + 1)
        return None if end.passes else end.documents

    def close(self) -> None:
        """End what works ahead, and remove the windows."""
        if self._maker is not None:
            self._maker.shutdown(wait=True, cancel_futures=True)
        if self._tokenising is not None:
            self._tokenising.close()
        self._opened.clear()

    def _window_of(self, number: int) -> _Window:
        """The window that holds an example."""
        if self._firsts[-1] <= number:
            with self._mutex:
                self._look()
        while self._firsts[-1] <= number:
            self._make(len(self._firsts) - 1)
        at = bisect_right(self._firsts, number) - 1
        if (window := self._opened.get(at)) is not None:
            return window
        with self._mutex:
            while (examples := self._open(at)) is None:
                self._make(at, again=True)
            start = self._start(at)
            luck = uniforms(self._seed, SHUFFLE + self._source, [at], len(examples))[0]
            window = _Window(at, start, examples, np.argsort(luck, kind="stable"))
            self._opened = {key: each for key, each in self._opened.items() if at - BEHIND <= key <= at} | {at: window}
            self._remove_behind(at)
        if self._ahead and self._maker is None:
            self._maker = ThreadPoolExecutor(1, "stream")
        if self._maker is not None:
            self._maker.submit(self._work_ahead, at + 1)
        return window

    def _work_ahead(self, at: int) -> None:
        with suppress(FineryError, OSError):  # whoever needs the window meets it again
            self._make(at)

    def _remove_behind(self, at: int) -> None:
        """Remove the windows that no process reads any more, and what a kill has left of them."""
        for path in self._folder.glob("window-*"):
            if int(path.name.removeprefix("window-")[:DIGITS]) < at - BEHIND:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def _make(self, at: int, again: bool = False) -> None:
        """Write a window and where the next one begins, unless that was done; `again` where the window is gone."""
        with self._mutex, lock(self._folder / "lock"):
            self._look()
            if at + 1 < len(self._firsts) and not (again and self._open(at) is None):
                return
            start = self._start(at)
            following = self._write(at, start)
            if at + 1 == len(self._firsts):
                with open(self._folder / "windows.jsonl", "ab") as index:
                    index.truncate(self._end)  # a kill may have left half a line
                    index.write(json.dumps(vars(following)).encode() + b"\n")
                    index.flush()
                    os.fsync(index.fileno())
                self._look()

    def _look(self) -> None:
        """Read what is new in the index: whole lines only."""
        with suppress(FileNotFoundError), open(self._folder / "windows.jsonl", "rb") as index:
            index.seek(self._end)
            for line in index:
                if not line.endswith(b"\n"):
                    break
                self._places.append(self._end)
                self._firsts.append(int(json.loads(line)["first"]))
                self._end += len(line)

    def _start(self, at: int) -> WindowStart:
        if at == 0:
            return WindowStart()
        with open(self._folder / "windows.jsonl", "rb") as index:
            index.seek(self._places[at])
            return WindowStart(**json.loads(index.readline()))

    def _file(self, at: int) -> Path:
        return self._folder / f"window-{at:0{DIGITS}d}{'' if self._layout == 'sentences' else '.npy'}"

    def _open(self, at: int) -> Blocks | Spans | None:
        """The examples of a window that was written."""
        if self._layout != "sentences":
            blocks = open_blocks(self._file(at), self._block_size)
            return None if blocks is None else Blocks(blocks)
        corpus = open_corpus(self._file(at))
        return None if corpus is None else Spans(corpus, self._length)

    @property
    def _block_size(self) -> int:
        return self._length + (2 if self._layout == "blocks" else 0)

    def _write(self, at: int, start: WindowStart) -> WindowStart:
        """Write a window; returns where the next one begins. Raises DataError where a whole pass gives no example."""
        texts, position, share = self._read(start.position)
        if self._tokenising is None:
            self._tokenising = Tokenising(self._tokenizer, self._processes, self._layout == "sentences")
        count = tokens = 0
        rest: list[int] = []
        too_few = DataError(f"the text has no document of two sentences that fit into {self._length} tokens")
        if self._layout == "sentences":
            count, tokens = self._write_spans(at, texts)
        else:
            packer = Packer(self._tokenizer, self._block_size, self._layout, start.rest)
            blocks = [packer.blocks(chunk) for chunk in self._tokenising(texts)]
            count, rest, too_few = sum(map(len, blocks)), packer.rest.tolist(), packer.too_few()
            if count:
                write_blocks(self._file(at), blocks, self._block_size)
        if position is None and start.first + count == 0:
            raise too_few
        return WindowStart(
            first=start.first + count,
            position=position,
            rest=rest,
            documents=start.documents + len(texts),
            tokens=start.tokens + tokens,
            passes=start.passes + (position is None),
            share=0.0 if position is None and start.share is not None else share,
        )

    def _write_spans(self, at: int, texts: list[str]) -> tuple[int, int]:
        """(examples, tokens) of a window of sentences; none where all come from one document, for pairs need two."""
        assert self._tokenising is not None
        try:
            write_corpus(self._file(at), self._tokenising(texts))
            corpus = open_corpus(self._file(at))
            assert corpus is not None
            spans = Spans(corpus, self._length)
        except DataError:  # no token, or no two sentences that fit
            return 0, 0
        return (len(spans), spans.tokens) if spans.document[0] != spans.document[-1] else (0, 0)

    def _read(self, position: Position | None) -> tuple[list[str], Position | None, float | None]:
        """(a window's documents, where the next one begins, the share of the text before that).

        A window has two documents at least, as far as the text has, so that pairs can be made of different ones.
        """
        texts, letters = self._open_texts(position), 0
        documents: list[str] = []
        reader = iter(texts)
        for text in reader:
            documents.append(text)
            letters += len(text)
            if len(documents) > 1 and (len(documents) >= self._buffer_size or letters >= LETTERS):
                behind, (done, everything) = texts.position(), texts.read()
                following = list(islice(reader, 2))
                if len(following) == 2:
                    return documents, behind, min(1.0, done / everything) if everything else None
                documents += following
        return documents, None, None
