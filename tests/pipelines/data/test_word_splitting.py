"""Words are counted exactly as the tokenizer cuts them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.tokenizers.base import SPACE, count_words, frequent_letters, split_words


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
