"""BPE on letters and on bytes, against the algorithm done slowly."""

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
from pipelines.data.tokenizers.bpe import BPE, ByteBPE

TEXTS = ["low low low low low lower lower newest newest newest newest newest newest widest widest widest"]
"""The dictionary of Sennrich et al. 2016, figure 1."""
LETTERS = "▁deilnorstw"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return BPE().train([*TEXTS, "Hello world, it's 5 o'clock\n\nand then\tsome."] * 2, 120)


def test_every_merge_joins_the_most_frequent_neighbours():
    """Algorithm 1 of the paper, step by step; among equally frequent pairs any may come first."""
    merges = json.loads(BPE(min_frequency=1).train(TEXTS, 5 + len(LETTERS) + 9).backend_tokenizer.to_str())["model"][
        "merges"
    ]
    assert len(merges) == 9
    words = [["▁", *word] for word in TEXTS[0].split()]
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


@settings(deadline=None)
@given(st.text("Helo wrd,it's5c\n\tanhm.", max_size=60))
def test_text_in_known_letters_comes_back_but_for_its_first_space(tokenizer: Any, text: str):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text.removeprefix(" ")


def test_pieces_do_not_cross_punctuation_and_lines():
    tokenizer = BPE(min_frequency=1).train(["stop. Then go.\nstop. Then go.\n"] * 4, 80)
    assert tokenizer.tokenize("stop. Then go.") == ["▁stop", ".", "▁Then", "▁go", "."]
    pieces = [token for token in tokenizer.get_vocab() if token not in SPECIAL_TOKENS and len(token) > 1]
    assert {"▁stop", "▁Then", "▁go"} <= set(pieces)
    assert all("." not in piece and "\n" not in piece for piece in pieces)


def test_a_mask_takes_the_space_before_it(tokenizer: Any):
    low = tokenizer.convert_tokens_to_ids("▁low")
    assert tokenizer("low [MASK] low", add_special_tokens=False)["input_ids"] == [low, tokenizer.mask_token_id, low]


def test_the_vocabulary_begins_with_special_tokens_then_letters():
    tokenizer = BPE().train(TEXTS, 40)
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    assert tuple(vocabulary[:5]) == SPECIAL_TOKENS
    assert vocabulary[5 : 5 + len(LETTERS)] == sorted(LETTERS)
    assert all(len(token) > 1 for token in vocabulary[5 + len(LETTERS) :])


def test_the_rarest_letters_become_unknown():
    tokenizer = BPE(limit_alphabet=4).train(["aaa bbb cc dd e"], 50)
    assert {token for token in tokenizer.get_vocab() if len(token) == 1} == {"▁", "a", "b", "c"}
    assert tokenizer.unk_token in tokenizer.tokenize("dd")
    assert tokenizer.unk_token not in tokenizer.tokenize("abc")


def test_case_can_be_removed():
    assert BPE(lowercase=True).train(["LOW low Low"] * 3, 50).tokenize("LOW") == ["▁low"]


def test_a_vocabulary_without_room_for_the_letters_says_how_many_it_needs():
    with pytest.raises(
        DataError, match="vocab_size is 15, must be at least 16 for this text: 5 special tokens and 11 letters"
    ):
        BPE().train(TEXTS, 15)
    assert len(BPE().train(TEXTS, 16)) == 16


@pytest.mark.parametrize("texts", [[], [""], [" \n"]])
def test_no_text_is_refused(texts: list[str]):
    with pytest.raises(DataError, match="text to train the tokenizer on is empty"):
        BPE().train(texts, 300)


BYTE_TEXTS = ["low low low low low lower lower newest newest newest newest newest newest widest widest widest"]
"""The dictionary of Sennrich et al. 2016, figure 1."""


@pytest.fixture(scope="module")
def byte_tokenizer() -> Any:
    return ByteBPE(add_prefix_space=True).train(
        [*BYTE_TEXTS, "Hello world, it's 5 o'clock\n\nand then\tsome."] * 2, 300
    )


@pytest.fixture(scope="module")
def exact() -> Any:
    return ByteBPE().train([*BYTE_TEXTS, "Hello world, it's 5 o'clock\n\nand then\tsome."] * 2, 300)


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8")))
def test_every_text_comes_back_to_the_byte(exact: Any, byte_tokenizer: Any, text: str):
    if any(token in text for token in SPECIAL_TOKENS):
        return
    ids = exact(text)["input_ids"]
    assert exact.unk_token_id not in ids
    assert exact.decode(ids, skip_special_tokens=True).encode() == text.encode()
    prefixed = byte_tokenizer.decode(byte_tokenizer(text, add_special_tokens=False)["input_ids"])
    assert prefixed in (text, " " + text)


def test_every_merge_joins_the_most_frequent_neighbours_byte_bpe():
    """Algorithm 1 of the paper, step by step; among equally frequent pairs any may come first."""
    merges = json.loads(
        ByteBPE(min_frequency=1, add_prefix_space=True).train(BYTE_TEXTS, 5 + 256 + 9).backend_tokenizer.to_str()
    )["model"]["merges"]
    assert len(merges) == 9
    words = [["Ġ", *word] for word in BYTE_TEXTS[0].split()]
    for first, second in merges:
        counts = Counter(pair for word in words for pair in pairwise(word))
        assert counts[first, second] == max(counts.values())
        words = [_joined_bytes(word, first, second) for word in words]
    assert ["".join(pair) for pair in merges[:2]] == ["es", "est"]


def _joined_bytes(word: list[str], first: str, second: str) -> list[str]:
    joined: list[str] = []
    for piece in word:
        if joined and (joined[-1], piece) == (first, second):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def test_a_mask_takes_the_space_before_it_byte_bpe(byte_tokenizer: Any):
    masked = byte_tokenizer("low [MASK] low", add_special_tokens=False)["input_ids"]
    low = byte_tokenizer.convert_tokens_to_ids("Ġlow")
    assert masked == [low, byte_tokenizer.mask_token_id, low]


def test_gpt2s_own_tokenizer_gives_the_same_pieces_with_the_same_merges(byte_tokenizer: Any, tmp_path: Path):
    from transformers import GPT2TokenizerFast

    model = json.loads(byte_tokenizer.backend_tokenizer.to_str())["model"]
    gpt2 = GPT2TokenizerFast(
        vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]], add_prefix_space=True, unk_token="[UNK]"
    )
    for text in ("Hello world, it's 5 o'clock", "lowest\n\n newer", "  two  spaces ", "café 漢字"):
        assert byte_tokenizer(text, add_special_tokens=False)["input_ids"] == gpt2(text)["input_ids"]


def test_the_first_word_is_written_like_every_other(byte_tokenizer: Any):
    assert byte_tokenizer.tokenize("low low") == ["Ġlow", "Ġlow"]
    bare = ByteBPE().train(BYTE_TEXTS, 300)
    assert bare.tokenize("low low")[-1] == "Ġlow"
    assert bare.tokenize("low low")[0] != "Ġlow"


def test_case_can_be_removed_byte_bpe():
    block = ByteBPE(lowercase=True, add_prefix_space=True)
    assert block.train(["LOW low Low"] * 3, 300).tokenize("LOW") == ["Ġlow"]


def test_the_vocabulary_begins_with_special_tokens_then_bytes(byte_tokenizer: Any):
    vocabulary = sorted(byte_tokenizer.get_vocab(), key=byte_tokenizer.get_vocab().__getitem__)
    assert tuple(vocabulary[:5]) == SPECIAL_TOKENS
    assert all(len(token) == 1 for token in vocabulary[5:261])
    assert all(len(token) > 1 for token in vocabulary[261:])


def test_a_vocabulary_without_room_for_the_bytes_says_how_many_it_needs():
    with pytest.raises(
        DataError, match="vocab_size is 260, must be at least 261 for this text: 5 special tokens and 256"
    ):
        ByteBPE().train(BYTE_TEXTS, 260)
    assert len(ByteBPE().train(BYTE_TEXTS, 261)) == 261


@pytest.mark.parametrize("texts", [[], [""], [" \n"]])
def test_no_text_is_refused_byte_bpe(texts: list[str]):
    with pytest.raises(DataError, match="text to train the tokenizer on is empty"):
        ByteBPE().train(texts, 300)
