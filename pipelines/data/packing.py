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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from pipelines.core.errors import DataError, DiskFull

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHUNK = 1_000
"""Documents that are tokenised at a time."""


def pack(
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    block_size: int,
    cache: Path,
    key: str,
    layout: Literal["blocks", "stream"] = "blocks",
) -> npt.NDArray[np.int32]:
    """Blocks of token ids, (blocks, block_size), mapped from a file in `cache` that `key` names.

    `key` must change with the texts and with the tokenizer. A file that is there is not made again. Raises DataError.
    """
    if layout == "blocks" and block_size < 3:
        raise DataError(f"block_size is {block_size}, must be at least 3: [CLS], [SEP] and text between them")
    if layout == "blocks" and (tokenizer.cls_token_id is None or tokenizer.sep_token_id is None):
        raise DataError("the tokenizer has no cls and sep tokens for the ends of blocks; use one made for encoders")
    name = hashlib.sha256(f"{key}\n{block_size}{'' if layout == 'blocks' else layout}".encode()).hexdigest()[:32]
    file = cache / f"packed-{name}.npy"
    blocks = _open(file, block_size)
    if blocks is None:
        _write(file, _blocks(tokenizer, texts, block_size, wrapped=layout == "blocks"), block_size)
        blocks = _open(file, block_size)
    if blocks is None:
        raise DataError(f"{file} was removed or damaged while it was prepared; run again")
    return blocks


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


def _open(file: Path, block_size: int) -> npt.NDArray[np.int32] | None:
    """The blocks in a complete file of the right shape."""
    try:
        blocks = np.load(file, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, ValueError, EOFError):
        return None
    right = blocks.dtype == np.int32 and blocks.ndim == 2 and blocks.shape[1] == block_size and len(blocks)
    return blocks if right else None


def _blocks(
    tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], block_size: int, wrapped: bool
) -> Iterator[npt.NDArray[np.int32]]:
    """Arrays of blocks, as many as each chunk of documents fills. Raises DataError when there is not one."""
    added = 2 if wrapped else 0
    inner = block_size - added
    end = np.asarray([tokenizer.sep_token_id if wrapped else end_of_text(tokenizer)], dtype=np.int32)
    rest = np.empty(0, dtype=np.int32)
    written = 0
    for chunk in chunks(texts):
        ids = tokenizer(
            chunk,
            add_special_tokens=False,
            truncation=False,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        pieces = [part for document in ids for part in (np.asarray(document, dtype=np.int32), end) if len(document)]
        stream = np.concatenate([rest, *pieces])
        count = len(stream) // inner
        rest = stream[count * inner :]
        blocks = stream[: count * inner].reshape(count, inner)
        if wrapped:
            first = np.full((count, 1), tokenizer.cls_token_id, dtype=np.int32)
            blocks = np.hstack([first, blocks, np.full((count, 1), end, dtype=np.int32)])
        written += count
        yield blocks
    if not written:
        explained = f" ({inner} and two special ones)" if wrapped else ""
        raise DataError(
            f"the text holds {len(rest)} tokens, too few for one block of {block_size}{explained}; "
            "give more text or a smaller block_size"
        )


def chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts, CHUNK at a time."""
    chunk: list[str] = []
    for text in texts:
        chunk.append(text)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _write(file: Path, blocks: Iterable[npt.NDArray[np.int32]], block_size: int) -> None:
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
