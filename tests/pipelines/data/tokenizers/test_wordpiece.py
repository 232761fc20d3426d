"""WordPiece: an obvious greedy reader agrees, transformers' BERT agrees, and training leaves nothing to chance."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import DataError
from pipelines.data.tokenizers.base import SPECIAL_TOKENS
from pipelines.data.tokenizers.wordpiece import WordPiece

TEXTS = [
    "The lower newest widest cat's café, and the lowest new wide cats!",
    "Newer and lower: 漢字 wider than wide.",
    "low low low lower newest newest widest " * 3,
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return WordPiece(min_frequency=1).train(TEXTS, 120)


def greedy(word: str, vocabulary: set[str]) -> list[str]:
    """Longest known piece first: the BERT repository's WordpieceTokenizer, written as the paper says it."""
    pieces: list[str] = []
    start = 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                pieces.append(piece)
                start = end
                break
        else:
            return ["[UNK]"]
    return pieces


WORDS = ["lower", "lowest", "newest", "cat", "wide", "zzz", "slow", "tttt", "unwide", "caf"]


@settings(deadline=None)
@given(words=st.lists(st.sampled_from(WORDS) | st.text("adelnorstwz", min_size=1, max_size=9), min_size=1, max_size=6))
def test_words_are_cut_greedily(tokenizer: Any, words: list[str]):
    expected = [piece for word in words for piece in greedy(word, set(tokenizer.get_vocab()))]
    assert tokenizer.tokenize(" ".join(words)) == expected


def test_berts_own_tokenizer_gives_the_same_ids_with_the_same_vocabulary(tokenizer: Any, tmp_path: Path):
    from transformers import BertTokenizerFast

    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    bert = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    for first, second in [
        ("The CAT's café!", None),
        ("lower", "newest, 漢字"),
        ("zzz [MASK] cat", "wide [SEP]"),
        ("", None),
    ]:
        assert dict(tokenizer(first, second)) == dict(bert(first, second))
    ids = tokenizer("lower newest, cat's!")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == bert.decode(ids, skip_special_tokens=True)


def test_the_vocabulary_begins_with_special_tokens_then_letters(tokenizer: Any):
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    assert tuple(vocabulary[:5]) == SPECIAL_TOKENS
    assert list(tokenizer.get_vocab().values()).count(0) == 1
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    letters = [token for token in vocabulary[5:] if len(token) == 1]
    assert vocabulary[5 : 5 + len(letters)] == sorted(letters)
    assert "e" in letters
    assert "T" not in letters
    assert "é" not in letters


def test_punctuation_and_ideographs_never_continue_a_word(tokenizer: Any):
    assert {"##'", "##!", "##漢"}.isdisjoint(tokenizer.get_vocab())
    assert {"'", "!", "漢", "##w"} <= set(tokenizer.get_vocab())


def test_frequent_words_become_one_entry_and_case_can_be_kept():
    texts = ["Lower lower Lower lower"] * 5
    assert WordPiece().train(texts, 100).tokenize("Lower") == ["lower"]
    assert WordPiece(lowercase=False).train(texts, 100).tokenize("Lower lower") == ["Lower", "lower"]


def test_min_frequency_forbids_rare_merges():
    texts = ["aa aa aa bb"]
    assert WordPiece(min_frequency=2).train(texts, 50).tokenize("aa bb") == ["aa", "b", "##b"]
    assert WordPiece(min_frequency=1).train(texts, 50).tokenize("aa bb") == ["aa", "bb"]


@settings(deadline=None)
@given(texts=st.lists(st.text(st.characters(codec="utf-8")), max_size=4), lowercase=st.booleans())
def test_the_letters_are_those_of_the_cleaned_texts(texts: list[str], lowercase: bool):
    from tokenizers import Tokenizer, models, normalizers

    cleaner = Tokenizer(models.WordPiece())
    cleaner.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    counts = Counter(
        letter for text in texts for letter in cleaner.normalizer.normalize_str(text) if not letter.isspace()
    )
    block = WordPiece(lowercase=lowercase, limit_alphabet=5)
    most_frequent = sorted(counts, key=lambda letter: (-counts[letter], letter))[:5]
    assert block._letters(cleaner, texts) == sorted(most_frequent)


def test_the_rarest_letters_go_first_when_the_alphabet_is_limited():
    texts = ["aaa bbb cc dd e"]
    tokenizer = WordPiece(limit_alphabet=3).train(texts, 50)
    letters = {token for token in tokenizer.get_vocab() if len(token) == 1}
    assert letters == {"a", "b", "c"}  # c and d occur equally often: the first in the order of code points stays
    assert tokenizer.tokenize("dd e aaa")[:2] == ["[UNK]", "[UNK]"]


def test_a_vocabulary_without_room_for_the_letters_says_how_many_it_needs():
    # 5 special tokens, the letters a b c !, and a b c inside words
    with pytest.raises(
        DataError, match=r"vocab_size is 11, must be at least 12 for this text: 5 special .* 4 letters and 3"
    ):
        WordPiece().train(["abc!"], 11)
    assert len(WordPiece().train(["abc!"], 12)) == 12


def test_more_entries_than_the_text_has_are_not_invented():
    assert len(WordPiece().train(["abc abc"], 5000)) < 30


@pytest.mark.parametrize("texts", [[], [""], [" \n\t"]])
def test_no_text_is_refused(texts: list[str]):
    with pytest.raises(DataError, match="text to train the tokenizer on is empty"):
        WordPiece().train(texts, 100)


def test_the_mask_stays_whole_in_lower_case_text(tokenizer: Any):
    tokens = tokenizer.tokenize("lower [MASK] cat")
    assert tokens.count("[MASK]") == 1
    assert tokens[-len(tokenizer.tokenize("cat")) - 1] == "[MASK]"
