"""Rectangles of rows, and what the decoder reads."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipelines.core.errors import ModelError
from pipelines.objectives.batches import (
    IGNORED_ROWS,
    end_token,
    ended,
    padding_token,
    shifted_right,
    squeezed,
    stacked_rows,
    start_token,
    taught,
    within,
)


def test_rows_are_filled_up_on_the_right():
    ids, lengths = stacked_rows([[1, 2, 3], [], [4]], fill=9)
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
    batch = taught(stacked_rows([[1, 2], [3]], 0), stacked_rows([[5, 6, 7], [8]], 0), start=2)
    assert batch["decoder_input_ids"].tolist() == [[2, 5, 6], [2, 8, 0]]
    assert batch["labels"].tolist() == [[5, 6, 7], [8, IGNORED_ROWS, IGNORED_ROWS]]
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
