"""What trained tokenizers have in common and what only this module does: wiring of the special tokens."""

from __future__ import annotations

import pytest

from pipelines.core.errors import DataError
from pipelines.data.tokenizers.base import SPECIAL_TOKENS, refuse_no_text, refuse_small_vocabulary, special_tokens


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
