"""Sequence to sequence: the settings of the objective.

Batches of pairs, and the smoothed loss against transformers' own and against the formula.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import T5Config, T5ForConditionalGeneration

from pipelines.objectives.seq2seq import Seq2SeqObjective


def test_it_learns_from_pairs_with_the_papers_smoothing():
    objective = Seq2SeqObjective()
    assert objective.pairs
    assert objective.label_smoothing == 0.1
    assert objective.head.kind == "seq2seq_lm"
    assert objective.label_names == {"labels": 1.0}
    with pytest.raises(ValidationError):
        Seq2SeqObjective(label_smoothing=1.0)


def test_a_decoder_that_looks_ahead_is_refused():
    assert "use mask_predict" in str(Seq2SeqObjective().misfit({"bidirectional_decoder": True}))


TOKENIZER = SimpleNamespace(pad_token_id=0)


def config(**words: Any) -> T5Config:
    small = {
        "vocab_size": 30,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 1,
        "num_heads": 2,
        "dropout_rate": 0.0,
    }
    return T5Config(**(small | {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 3} | words))


EXAMPLES = [
    {"input_ids": [2, 10, 11, 3], "labels": [2, 20, 21, 22, 3], "draw": 0},
    {"input_ids": [2, 12, 3], "labels": [2, 23, 3], "draw": 1},
]


def test_sources_and_targets_have_their_own_lengths():
    batch = Seq2SeqObjective().collate(TOKENIZER, 0, config())(EXAMPLES)
    assert batch["input_ids"].tolist() == [[2, 10, 11, 3], [2, 12, 3, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch["labels"].tolist() == [[2, 20, 21, 22, 3], [2, 23, 3, -100, -100]]
    assert batch["decoder_input_ids"].tolist() == [[0, 2, 20, 21, 22], [0, 2, 23, 3, 0]]


def test_the_start_token_is_given_and_not_asked_for():
    batch = Seq2SeqObjective().collate(TOKENIZER, 0, config(decoder_start_token_id=2))(EXAMPLES)
    assert batch["labels"].tolist() == [[20, 21, 22, 3], [23, 3, -100, -100]]
    assert batch["decoder_input_ids"].tolist() == [[2, 20, 21, 22], [2, 23, 3, 0]]


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return T5ForConditionalGeneration(config())


def test_without_smoothing_the_loss_is_transformers_own(model: Any):
    batch = Seq2SeqObjective().collate(TOKENIZER, 0, model.config)(EXAMPLES)
    sums, _ = Seq2SeqObjective(label_smoothing=0.0).loss(model, dict(batch))
    expected = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"]).loss
    assert sums.shape == (1,)
    assert sums.item() / 8 == pytest.approx(expected.item(), rel=1e-6)


def test_smoothing_asks_a_tenth_of_all_tokens_alike(model: Any):
    batch = Seq2SeqObjective().collate(TOKENIZER, 0, model.config)(EXAMPLES)
    sums, outputs = Seq2SeqObjective(label_smoothing=0.1).loss(model, dict(batch))
    logs = outputs.logits.log_softmax(-1)
    total = 0.0
    for row, column in (batch["labels"] != -100).nonzero().tolist():
        at = logs[row, column]
        total -= 0.9 * at[batch["labels"][row, column]].item() + 0.1 * at.mean().item()
    assert sums.item() == pytest.approx(total, rel=1e-6)


def test_padding_changes_nothing(model: Any):
    collate = Seq2SeqObjective().collate(TOKENIZER, 0, model.config)
    together, _ = Seq2SeqObjective().loss(model, collate(EXAMPLES))
    alone = [Seq2SeqObjective().loss(model, collate([example]))[0] for example in EXAMPLES]
    assert together.item() == pytest.approx(sum(each.item() for each in alone), rel=1e-5)
