"""Which tokens continue a word, for the three ways in which vocabularies mark it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipelines.core.errors import ModelError
from pipelines.data.tokenizers.base import SPECIAL_TOKENS
from pipelines.data.tokenizers.bpe import BPE, ByteBPE
from pipelines.data.tokenizers.unigram import Unigram
from pipelines.data.tokenizers.wordpiece import WordPiece
from pipelines.objectives.batches import continues_word

TEXTS = ["unbelievable stories, told\n\nslowly and wisely"] * 2


def continuing(tokenizer: Any, text: str) -> dict[str, bool]:
    table = continues_word(tokenizer)
    assert table.shape == (len(tokenizer),)
    assert table.dtype == np.bool_
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return {tokenizer.convert_ids_to_tokens(token): bool(table[token]) for token in ids}


def test_wordpiece_marks_pieces_that_continue():
    tokenizer = WordPiece(min_frequency=3).train(TEXTS, 100)
    assert continuing(tokenizer, "told, un") == {
        "t": False,
        "##o": True,
        "##l": True,
        "##d": True,
        ",": False,
        "u": False,
        "##n": True,
    }


def test_byte_level_marks_pieces_that_begin_with_white_space():
    tokenizer = ByteBPE(min_frequency=9, add_prefix_space=True).train(TEXTS, 300)
    assert continuing(tokenizer, "ab\n") == {"Ġ": False, "a": True, "b": True, "Ċ": False}


@pytest.mark.parametrize("block", [BPE(min_frequency=9), Unigram(max_piece_length=1)])
def test_vocabularies_of_letters_mark_the_space_and_keep_line_breaks_as_they_are(block: Any):
    assert continuing(block.train(TEXTS, 300), "ab\n") == {"▁": False, "a": True, "b": True, "\n": False}


def test_special_tokens_never_continue_a_word():
    for tokenizer in (
        WordPiece().train(TEXTS, 100),
        BPE().train(TEXTS, 300),
        ByteBPE().train(TEXTS, 300),
        Unigram().train(TEXTS, 60),
    ):
        table = continues_word(tokenizer)
        assert not table[[tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS]].any()
        assert table.any()


def test_sentencepiece_marks_pieces_with_its_own_space():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model = models.Unigram([("<unk>", 0.0), ("\u2581he", -1.0), ("llo", -2.0)], unk_id=0)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), unk_token="<unk>")
    assert continues_word(tokenizer).tolist() == [False, False, True]


def test_a_vocabulary_without_marks_is_refused():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(ModelError, match="this tokenizer does not mark where words begin; leave whole_word out"):
        continues_word(words)
