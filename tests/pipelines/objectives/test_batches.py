"""Rectangles of rows, and what the decoder reads.

Which tokens continue a word, for the three ways in which vocabularies mark it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import IGNORED
from pipelines.data.tokenizers.base import SPECIAL_TOKENS
from pipelines.data.tokenizers.bpe import BPE, ByteBPE
from pipelines.data.tokenizers.unigram import Unigram
from pipelines.data.tokenizers.wordpiece import WordPiece
from pipelines.models.checkpoint import start_token
from pipelines.objectives.batches import (
    continues_word,
    end_token,
    ended,
    padded,
    padding_token,
    shifted_right,
    squeezed,
    taught,
    within,
)


def test_rows_are_filled_up_on_the_right():
    ids, lengths = padded([[1, 2, 3], [], [4]], fill=9)
    assert ids.tolist() == [[1, 2, 3], [9, 9, 9], [4, 9, 9]]
    assert lengths.tolist() == [3, 0, 1]
    assert within(lengths, 3).tolist() == [[True] * 3, [False] * 3, [True, False, False]]


def test_what_is_kept_moves_to_the_left_in_its_order():
    values = np.asarray([[1, 2, 3, 4], [5, 6, 7, 8]])
    kept, lengths = squeezed(values, values % 2 == 0, fill=0)
    assert kept.tolist() == [[2, 4], [6, 8]]
    kept, lengths = squeezed(values, values > 3, fill=0)
    assert kept.tolist() == [[4, 0, 0, 0], [5, 6, 7, 8]]
    assert lengths.tolist() == [1, 4]


def test_the_end_follows_the_last_entry():
    rows, lengths = ended(np.asarray([[1, 2], [3, 0]]), np.asarray([2, 1]), end=7, fill=0)
    assert rows.tolist() == [[1, 2, 7], [3, 7, 0]]
    assert lengths.tolist() == [3, 2]


def test_the_decoder_reads_the_target_one_step_late():
    assert shifted_right(np.asarray([[5, 6, 7]]), start=2).tolist() == [[2, 5, 6]]
    batch = taught(padded([[1, 2], [3]], 0), padded([[5, 6, 7], [8]], 0), start=2)
    assert batch["decoder_input_ids"].tolist() == [[2, 5, 6], [2, 8, 0]]
    assert batch["labels"].tolist() == [[5, 6, 7], [8, IGNORED, IGNORED]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert all(value.dtype == torch.int64 for value in batch.values())


def test_the_decoder_reads_what_t5_and_bart_shift_themselves():
    from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

    small = {"vocab_size": 20, "d_model": 8, "pad_token_id": 0, "decoder_start_token_id": 3}
    t5 = T5ForConditionalGeneration(T5Config(**small, num_layers=1, d_kv=4, d_ff=8, num_heads=2))
    bart = BartForConditionalGeneration(
        BartConfig(**small, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
    )
    targets = np.asarray([[5, 6, 7], [8, 9, 4]])
    for model in (t5, bart):
        expected = model.prepare_decoder_input_ids_from_labels(torch.from_numpy(targets))
        assert shifted_right(targets, start_token(model.config, None)).tolist() == expected.tolist()


def test_missing_tokens_are_one_sentence_each():
    bare = SimpleNamespace(pad_token_id=None, eos_token_id=None, sep_token_id=None)
    with pytest.raises(ModelError, match="no padding token"):
        padding_token(bare)
    with pytest.raises(ModelError, match="objective span_corruption; set eos_token"):
        end_token(bare, "span_corruption")
    with pytest.raises(ModelError, match="decoder cannot begin"):
        start_token(SimpleNamespace(decoder_start_token_id=None), bare)
    assert end_token(SimpleNamespace(eos_token_id=None, sep_token_id=3), "x") == 3
    assert end_token(SimpleNamespace(eos_token_id=0, sep_token_id=3), "x") == 0
    assert start_token(SimpleNamespace(decoder_start_token_id=0), SimpleNamespace(pad_token_id=5)) == 0
    assert start_token(None, SimpleNamespace(pad_token_id=5)) == 5


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
