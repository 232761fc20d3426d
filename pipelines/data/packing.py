"""Text to pretrain on as blocks of equal length without padding, mapped from disk.

Documents are joined, each followed by its end. In the layout `blocks` the end is `[SEP]`, and pieces of `block_size -
2` tokens are wrapped as `[CLS] … [SEP]` (full sentences across documents, Liu et al. 2019, "RoBERTa", section 4.2,
arxiv.org/abs/1907.11692). In the layout `stream` the end is the tokenizer's end of text, else its `[SEP]`, and pieces
of `block_size` tokens have nothing added (Brown et al. 2020, "Language Models are Few-Shot Learners", appendix B,
arxiv.org/abs/2005.14165). What remains at the end and does not fill a block is left out.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import DataError, DiskFull
from pipelines.core.files import made_once
from pipelines.data.tokenising import TokenisedDocuments, tokenised

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def pack(
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    block_size: int,
    cache: Path,
    key: str,
    layout: Literal["blocks", "stream"] = "blocks",
    processes: int | None = None,
) -> npt.NDArray[np.int32]:
    """Blocks of token ids, (blocks, block_size), mapped from a file in `cache` that `key` names.

    `key` must change with the texts and with the tokenizer. A file that is there is not made again. `processes` is for
    `tokenised`. Raises DataError.
    """
    packer = Packer(tokenizer, block_size, layout)
    name = hashlib.sha256(f"{key}\n{block_size}{'' if layout == 'blocks' else layout}".encode()).hexdigest()[:32]
    file = cache / f"packed-{name}.npy"

    def load() -> npt.NDArray[np.int32] | None:
        blocks = open_blocks(file, block_size)
        return None if blocks is None or not len(blocks) else blocks

    def make() -> None:
        write_blocks(file, packer.all_blocks(tokenised(tokenizer, texts, processes)), block_size)

    return made_once(file, load, make)


class Packer:
    """Documents to blocks, chunk by chunk. What does not fill a block waits in `rest` for the next chunk."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        block_size: int,
        layout: Literal["blocks", "stream"],
        rest: Sequence[int] = (),
    ) -> None:
        if layout == "blocks" and block_size < 3:
            raise DataError(f"block_size is {block_size}, must be at least 3: [CLS], [SEP] and text between them")
        if layout == "blocks" and (tokenizer.cls_token_id is None or tokenizer.sep_token_id is None):
            raise DataError("the tokenizer has no cls and sep tokens for the ends of blocks; use one made for encoders")
        self.block_size = block_size
        self.rest = np.asarray(rest, dtype=np.int32)
        """Tokens that did not fill a block (tokens,)."""
        self._first = tokenizer.cls_token_id if layout == "blocks" else None
        self._end = tokenizer.sep_token_id if layout == "blocks" else end_of_text(tokenizer)

    @property
    def inner(self) -> int:
        """Tokens of the text in a block."""
        return self.block_size - (0 if self._first is None else 2)

    def blocks(self, chunk: TokenisedDocuments) -> npt.NDArray[np.int32]:
        """The blocks that a chunk fills, with what is left of those before it (blocks, block_size)."""
        ends = np.cumsum(chunk.documents)
        stream = np.concatenate([self.rest, np.insert(chunk.ids, ends, self._end).astype(np.int32, copy=False)])
        count = len(stream) // self.inner
        self.rest = stream[count * self.inner :].copy()
        blocks = stream[: count * self.inner].reshape(count, self.inner)
        if self._first is None:
            return blocks
        first, last = (np.full((count, 1), each, dtype=np.int32) for each in (self._first, self._end))
        return np.hstack([first, blocks, last])

    def all_blocks(self, chunks: Iterable[TokenisedDocuments]) -> Iterator[npt.NDArray[np.int32]]:
        """The blocks of each chunk. Raises DataError when there is not one."""
        written = 0
        for chunk in chunks:
            blocks = self.blocks(chunk)
            written += len(blocks)
            yield blocks
        if not written:
            raise self.too_few()

    def too_few(self) -> DataError:
        """What is wrong where all the text is in `rest`."""
        explained = "" if self._first is None else f" ({self.inner} and two special ones)"
        return DataError(
            f"the text holds {len(self.rest)} tokens, too few for one block of {self.block_size}{explained}; "
            "give more text or a smaller block_size"
        )


def prepared_key(tokenizer: PreTrainedTokenizerBase, content: Mapping[str, str], *shape: object) -> str:
    """A name that changes with the tokenizer, the data's content and the shape asked for."""
    backend = tokenizer.backend_tokenizer.to_str() if hasattr(tokenizer, "backend_tokenizer") else repr(tokenizer)
    text = json.dumps([backend, dict(content), shape], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def end_of_text(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that follows each document of a stream. Raises DataError."""
    end = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    if end is None:
        raise DataError("the tokenizer has neither an eos nor a sep token to end documents with; set eos_token")
    return int(end)


class Blocks:
    """Packed blocks as the rows of a data set."""

    def __init__(self, blocks: npt.NDArray[np.int32]) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, position: int) -> dict[str, npt.NDArray[np.int32]]:
        return {"input_ids": self.blocks[position]}


def open_blocks(file: Path, block_size: int) -> npt.NDArray[np.int32] | None:
    """The blocks in a complete file of the right shape; None where there is no such file."""
    try:
        blocks = np.load(file, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):
        return None
    right = blocks.dtype == np.int32 and blocks.ndim == 2 and blocks.shape[1] == block_size
    return blocks if right else None


def write_blocks(file: Path, blocks: Iterable[npt.NDArray[np.int32]], block_size: int) -> None:
    """Write blocks as one .npy file, which appears complete or not at all. Raises DiskFull."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as out:
            _header(out, 0, block_size)
            count = 0
            for array in blocks:
                out.write(array.tobytes())
                count += len(array)
            out.seek(0)
            _header(out, count, block_size)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, file)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"the disk of {file.parent} is full; free space, or set FINERY_HOME elsewhere") from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _header(out: IO[bytes], count: int, block_size: int) -> None:
    """The head of a .npy file. NumPy leaves room for the first dimension to grow: its length is always the same."""
    kind = np.lib.format.dtype_to_descr(np.dtype(np.int32))
    np.lib.format.write_array_header_1_0(out, {"descr": kind, "fortran_order": False, "shape": (count, block_size)})
