"""Unigram: the library's model spells with our pieces, likelier than the library's own trainer makes it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import DataError
from pipelines.data.tokenizers.base import SPECIAL_TOKENS, split_words
from pipelines.data.tokenizers.unigram import Unigram

TEXTS = [
    f"Document {n}: the quick brown fox jumps over {n * n} lazy dogs, isn't it?\nThe quicker, the lazier."
    for n in range(120)
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return Unigram().train(TEXTS, 200)


@settings(deadline=None)
@given(st.text("Documenthquickbrwfxjpsvlazydg 0123,:'?.\n", max_size=60))
def test_text_in_known_letters_comes_back_but_for_its_first_space(tokenizer: Any, text: str):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text.removeprefix(" ")


def test_frequent_words_become_one_piece(tokenizer: Any):
    assert tokenizer.tokenize("the quick brown fox") == ["▁the", "▁quick", "▁brown", "▁fox"]


def test_a_mask_takes_the_space_before_it(tokenizer: Any):
    the = tokenizer.convert_tokens_to_ids("▁the")
    assert tokenizer("the [MASK] the", add_special_tokens=False)["input_ids"] == [the, tokenizer.mask_token_id, the]


def test_the_text_is_likelier_than_with_the_pieces_of_the_library():
    from tokenizers import Tokenizer, models, trainers

    theirs = Tokenizer(models.Unigram())
    split_words(theirs, False)
    theirs.train_from_iterator(
        TEXTS,
        trainers.UnigramTrainer(
            vocab_size=120, special_tokens=list(SPECIAL_TOKENS), unk_token="[UNK]", show_progress=False
        ),
    )
    ours = Unigram().train(TEXTS, 120).backend_tokenizer
    assert _log_likelihood(ours) > _log_likelihood(theirs)
    assert len(json.loads(ours.to_str())["model"]["vocab"]) <= 120


def _log_likelihood(tokenizer: Any) -> float:
    scores = dict(json.loads(tokenizer.to_str())["model"]["vocab"])
    return sum(
        scores[token] for each in tokenizer.encode_batch(TEXTS, add_special_tokens=False) for token in each.tokens
    )


def test_letters_that_are_not_kept_are_unknown():
    tokenizer = Unigram(limit_alphabet=5).train(["aaa bbb ccc ddd ab ab e"] * 3, 40)
    assert tokenizer.unk_token_id in tokenizer("e", add_special_tokens=False)["input_ids"]
    assert tokenizer.unk_token_id not in tokenizer("abcd", add_special_tokens=False)["input_ids"]


def test_case_can_be_removed():
    assert Unigram(lowercase=True).train(["LOW low Low lOw"] * 3, 50).tokenize("LOW") == ["▁low"]


def test_pieces_are_no_longer_than_allowed():
    pieces = Unigram(max_piece_length=3).train(TEXTS, 200).get_vocab().keys() - set(SPECIAL_TOKENS)
    assert max(map(len, pieces)) == 3


def test_a_vocabulary_without_room_for_the_letters_says_how_many_it_needs():
    # the space, a and b
    with pytest.raises(
        DataError, match="vocab_size is 7, must be at least 8 for this text: 5 special tokens and 3 letters"
    ):
        Unigram().train(["ab ab"], 7)
    assert len(Unigram().train(["ab ab"], 8)) == 8


@pytest.mark.parametrize("texts", [[], [""], [" \n"]])
def test_no_text_is_refused(texts: list[str]):
    with pytest.raises(DataError, match="text to train the tokenizer on is empty"):
        Unigram().train(texts, 300)
