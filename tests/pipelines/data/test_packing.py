"""Packed blocks against a slow reader that goes token by token."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.core.errors import DataError, DiskFull
from pipelines.data import packing, tokenising
from pipelines.data.packing import Blocks, pack
from pipelines.data.tokenizers.wordpiece import WordPiece

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "looked", "at", "dogs"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return WordPiece(min_frequency=1).train([" ".join(WORDS)] * 3, 90)


def slowly(tokenizer: Any, texts: list[str], block_size: int) -> list[list[int]]:
    """One token at a time."""
    blocks: list[list[int]] = []
    block = [tokenizer.cls_token_id]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        for token in [*ids, tokenizer.sep_token_id] if ids else []:
            block.append(token)
            if len(block) == block_size - 1:
                blocks.append([*block, tokenizer.sep_token_id])
                block = [tokenizer.cls_token_id]
    return blocks


def stream_slowly(tokenizer: Any, texts: list[str], block_size: int) -> list[list[int]]:
    """One token at a time, nothing added but the ends of documents."""
    stream = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        stream += [*ids, tokenizer.eos_token_id] if ids else []
    return [stream[start : start + block_size] for start in range(0, len(stream) - block_size + 1, block_size)]


texts_strategy = st.lists(st.lists(st.sampled_from([*WORDS, "dog", "?"]), max_size=12).map(" ".join), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(texts=texts_strategy, block_size=st.integers(3, 12), chunk=st.integers(1, 5))
def test_blocks_are_those_of_the_slow_reader(
    tokenizer: Any, tmp_path: Path, texts: list[str], block_size: int, chunk: int
):
    expected = slowly(tokenizer, texts, block_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenising, "CHUNK", chunk)
        key = f"{texts} {block_size} {chunk}"
        if not expected:
            with pytest.raises(DataError, match="too few for one block"):
                pack(tokenizer, texts, block_size, tmp_path, key)
            return
        blocks = pack(tokenizer, iter(texts), block_size, tmp_path, key)
    assert blocks.tolist() == expected
    assert blocks.dtype == np.int32


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(texts=texts_strategy, block_size=st.integers(2, 12), chunk=st.integers(1, 5))
def test_a_stream_is_that_of_the_slow_reader(
    tokenizer: Any, tmp_path: Path, texts: list[str], block_size: int, chunk: int
):
    expected = stream_slowly(tokenizer, texts, block_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenising, "CHUNK", chunk)
        key = f"{texts} {block_size} {chunk}"
        if not expected:
            with pytest.raises(DataError, match=f"too few for one block of {block_size}; give more text"):
                pack(tokenizer, texts, block_size, tmp_path, key, "stream")
            return
        assert pack(tokenizer, iter(texts), block_size, tmp_path, key, "stream").tolist() == expected


def test_layouts_of_the_same_text_do_not_share_a_file(tokenizer: Any, tmp_path: Path):
    texts = [" ".join(WORDS)] * 5
    for _ in range(2):
        assert pack(tokenizer, texts, 8, tmp_path, "key")[0, 0] == tokenizer.cls_token_id
        assert pack(tokenizer, texts, 8, tmp_path, "key", "stream")[0, 0] != tokenizer.cls_token_id


def test_documents_end_with_the_end_of_text_or_else_with_the_separator():
    class Ends:
        eos_token_id: int | None = 7
        sep_token_id: int | None = 3

    ends = Ends()
    assert packing.end_of_text(ends) == 7
    ends.eos_token_id = None
    assert packing.end_of_text(ends) == 3
    ends.sep_token_id = None
    with pytest.raises(DataError, match="neither an eos nor a sep token"):
        packing.end_of_text(ends)


def test_what_is_packed_is_not_tokenised_again_and_lies_on_disk(tokenizer: Any, tmp_path: Path):
    first = pack(tokenizer, [" ".join(WORDS)] * 5, 8, tmp_path, "key")

    def never() -> Any:
        raise AssertionError("read again")
        yield

    again = pack(tokenizer, never(), 8, tmp_path, "key")
    assert isinstance(again, np.memmap)
    assert not again.flags.writeable
    assert np.array_equal(first, again)
    assert len(list(tmp_path.iterdir())) == 1


def test_key_and_block_size_name_the_file(tokenizer: Any, tmp_path: Path):
    texts = [" ".join(WORDS)] * 5
    for key, block_size in (("one", 8), ("two", 8), ("one", 9)):
        pack(tokenizer, texts, block_size, tmp_path, key)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_file_is_made_again(tokenizer: Any, tmp_path: Path, damage: str):
    texts = [" ".join(WORDS)] * 5
    expected = pack(tokenizer, texts, 8, tmp_path, "key").copy()
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes({"cut": content[:-4], "empty": b"", "other": b"not an array"}[damage])
    assert np.array_equal(pack(tokenizer, texts, 8, tmp_path, "key"), expected)


def test_a_failure_half_way_leaves_nothing_behind(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenising, "CHUNK", 1)

    def texts() -> Any:
        yield " ".join(WORDS)
        raise RuntimeError("torn")

    with pytest.raises(RuntimeError, match="torn"):
        pack(tokenizer, texts(), 8, tmp_path, "key")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing_behind(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(packing.os, "fsync", full)
    with pytest.raises(DiskFull, match=rf"the disk of {tmp_path} is full; free space"):
        pack(tokenizer, [" ".join(WORDS)] * 5, 8, tmp_path, "key")
    assert list(tmp_path.iterdir()) == []


def test_too_little_text_and_too_small_blocks_are_refused(tokenizer: Any, tmp_path: Path):
    with pytest.raises(
        DataError, match=r"the text holds 3 tokens, too few for one block of 8 \(6 and two special ones\)"
    ):
        pack(tokenizer, ["the cat"], 8, tmp_path, "key")
    with pytest.raises(DataError, match="block_size is 2, must be at least 3"):
        pack(tokenizer, ["the cat"], 2, tmp_path, "key")


def test_a_tokenizer_without_ends_is_refused(tmp_path: Path):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(DataError, match="has no cls and sep tokens"):
        pack(bare, ["a"], 8, tmp_path, "key")


def test_the_head_of_the_file_has_the_same_length_for_every_count():
    lengths = set()
    for count in (0, 1, 10**9, 2**62):
        out = io.BytesIO()
        packing._header(out, count, 128)
        lengths.add(len(out.getvalue()))
    assert len(lengths) == 1


def test_blocks_are_rows(tokenizer: Any, tmp_path: Path):
    blocks = pack(tokenizer, [" ".join(WORDS)] * 5, 8, tmp_path, "key")
    rows = Blocks(blocks)
    assert len(rows) == len(blocks)
    assert list(rows[1]) == ["input_ids"]
    assert np.array_equal(rows[1]["input_ids"], blocks[1])


def test_real_text_is_packed_without_losing_a_token(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from transformers import BertTokenizerFast

    from pipelines.data.references import DatasetReference

    monkeypatch.setenv("FINERY_DATA", str(mirror))
    bert = BertTokenizerFast(str(mirror / "tokenizers" / "bert-base-uncased" / "vocab.txt"))
    texts = DatasetReference.model_validate({"path": "english_novels", "split": "validation"}).rows()[:40]
    blocks = pack(bert, texts, 128, tmp_path, "novels")
    stream = [token for text in texts for token in [*bert.encode(text, add_special_tokens=False), bert.sep_token_id]]
    inner = blocks[:, 1:-1].ravel()
    assert inner.tolist() == stream[: len(inner)]
    assert len(stream) - len(inner) < 126
    assert set(blocks[:, 0].tolist()) == {bert.cls_token_id}
    assert set(blocks[:, -1].tolist()) == {bert.sep_token_id}
