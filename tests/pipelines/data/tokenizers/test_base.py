"""What every trained tokenizer has, and how words are cut."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import DataError
from pipelines.data.tokenizers.base import (
    SPACE,
    SPECIAL_TOKENS,
    count_words,
    frequent_letters,
    refuse_no_text,
    refuse_small_vocabulary,
    special_tokens,
    split_words,
)


@pytest.mark.parametrize("mask_takes_space", [True, False])
def test_special_tokens_are_never_cut_or_changed_and_only_the_mask_may_take_the_space_before_it(mask_takes_space: bool):
    tokens = special_tokens(mask_takes_space)
    assert tuple(token.content for token in tokens) == SPECIAL_TOKENS
    assert all(token.special and not token.normalized for token in tokens)
    assert [token.content for token in tokens if token.lstrip] == (["[MASK]"] if mask_takes_space else [])


def test_too_small_and_no_text_are_one_sentence():
    refuse_small_vocabulary(10, 10, "x")
    with pytest.raises(DataError, match="vocab_size is 9, must be at least 10 for this text: x"):
        refuse_small_vocabulary(9, 10, "x")
    refuse_no_text(1)
    with pytest.raises(DataError, match="text to train the tokenizer on is empty"):
        refuse_no_text(0)


def cutter(lowercase: bool) -> Any:
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.BPE())
    split_words(tokenizer, lowercase)
    return tokenizer


@settings(deadline=None)
@given(st.lists(st.text("aB c.\n\t'▁é", max_size=20), max_size=5), st.booleans())
def test_counts_equal_cutting_every_text(texts: list[str], lowercase: bool):
    tokenizer = cutter(lowercase)
    expected: Counter[str] = Counter()
    for text in texts:
        plain = tokenizer.normalizer.normalize_str(text) if lowercase else text
        expected.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(plain))
    assert count_words(tokenizer, texts) == expected


def test_spaces_belong_to_the_word_behind_them_and_marks_stand_alone():
    words = count_words(cutter(False), ['He said: "so  what?"\n\nNo.'])
    assert words == {
        "▁He": 1,
        "▁said": 1,
        ":": 1,
        "▁": 2,
        '"': 2,
        "so": 1,
        "▁what": 1,
        "?": 1,
        "\n\n": 1,
        "No": 1,
        ".": 1,
    }


def test_the_most_frequent_letters_are_kept_and_the_space_always_is():
    words = Counter({"▁ab": 3, "cc": 2, "▁d": 1})
    assert frequent_letters(words, 3) == ["a", "c", SPACE]
    assert frequent_letters(words, 1) == [SPACE]
    assert frequent_letters(words, 100) == ["a", "b", "c", "d", SPACE]


@pytest.mark.parametrize("text", ["a b", "two  spaces", "", "x\ny\tz", "it's - “so”."])
def test_the_pieces_give_the_text_back(text: str):
    tokenizer = cutter(False)
    words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert tokenizer.decoder.decode(words) == text
