"""Byte-level BPE: any text comes back unchanged, GPT-2's own tokenizer agrees, merges are those of the paper's example."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import DataError
from pipelines.data.tokenizers.base import SPECIAL_TOKENS
from pipelines.data.tokenizers.bpe import ByteBPE

TEXTS = ["low low low low low lower lower newest newest newest newest newest newest widest widest widest"]
"""The dictionary of Sennrich et al. 2016, figure 1."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return ByteBPE(add_prefix_space=True).train([*TEXTS, "Hello world, it's 5 o'clock\n\nand then\tsome."] * 2, 300)


@pytest.fixture(scope="module")
def exact() -> Any:
    return ByteBPE().train([*TEXTS, "Hello world, it's 5 o'clock\n\nand then\tsome."] * 2, 300)


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8")))
def test_every_text_comes_back_to_the_byte(exact: Any, tokenizer: Any, text: str):
    if any(token in text for token in SPECIAL_TOKENS):
        return
    ids = exact(text)["input_ids"]
    assert exact.unk_token_id not in ids
    assert exact.decode(ids, skip_special_tokens=True).encode() == text.encode()
    prefixed = tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert prefixed in (text, " " + text)


def test_every_merge_joins_the_most_frequent_neighbours():
    """Algorithm 1 of the paper, step by step; among equally frequent pairs any may come first."""
    merges = json.loads(
        ByteBPE(min_frequency=1, add_prefix_space=True).train(TEXTS, 5 + 256 + 9).backend_tokenizer.to_str()
    )["model"]["merges"]
    assert len(merges) == 9
    words = [["Ġ", *word] for word in TEXTS[0].split()]
    for first, second in merges:
        counts = Counter(pair for word in words for pair in pairwise(word))
        assert counts[first, second] == max(counts.values())
        words = [_joined(word, first, second) for word in words]
    assert ["".join(pair) for pair in merges[:2]] == ["es", "est"]


def _joined(word: list[str], first: str, second: str) -> list[str]:
    joined: list[str] = []
    for piece in word:
        if joined and (joined[-1], piece) == (first, second):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def test_a_mask_takes_the_space_before_it(tokenizer: Any):
    masked = tokenizer("low [MASK] low", add_special_tokens=False)["input_ids"]
    low = tokenizer.convert_tokens_to_ids("Ġlow")
    assert masked == [low, tokenizer.mask_token_id, low]


def test_gpt2s_own_tokenizer_gives_the_same_pieces_with_the_same_merges(tokenizer: Any, tmp_path: Path):
    from transformers import GPT2TokenizerFast

    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    gpt2 = GPT2TokenizerFast(
        vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]], add_prefix_space=True, unk_token="[UNK]"
    )
    for text in ("Hello world, it's 5 o'clock", "lowest\n\n newer", "  two  spaces ", "café 漢字"):
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == gpt2(text)["input_ids"]


def test_the_first_word_is_written_like_every_other(tokenizer: Any):
    assert tokenizer.tokenize("low low") == ["Ġlow", "Ġlow"]
    bare = ByteBPE().train(TEXTS, 300)
    assert bare.tokenize("low low")[-1] == "Ġlow"
    assert bare.tokenize("low low")[0] != "Ġlow"


def test_case_can_be_removed():
    block = ByteBPE(lowercase=True, add_prefix_space=True)
    assert block.train(["LOW low Low"] * 3, 300).tokenize("LOW") == ["Ġlow"]


def test_the_vocabulary_begins_with_special_tokens_then_bytes(tokenizer: Any):
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    assert tuple(vocabulary[:5]) == SPECIAL_TOKENS
    assert all(len(token) == 1 for token in vocabulary[5:261])
    assert all(len(token) > 1 for token in vocabulary[261:])


def test_a_vocabulary_without_room_for_the_bytes_says_how_many_it_needs():
    with pytest.raises(
        DataError, match="vocab_size is 260, must be at least 261 for this text: 5 special tokens and 256"
    ):
        ByteBPE().train(TEXTS, 260)
    assert len(ByteBPE().train(TEXTS, 261)) == 261


@pytest.mark.parametrize("texts", [[], [""], [" \n"]])
def test_no_text_is_refused(texts: list[str]):
    with pytest.raises(DataError, match="text to train the tokenizer on is empty"):
        ByteBPE().train(texts, 300)
