"""Bidirectional LM: each direction names its neighbours from its own side alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from pipelines.architectures import FineryRnnConfig, FineryRnnForPreTraining
from pipelines.core.interfaces import IGNORED
from pipelines.models.log_probabilities import distributions_of
from pipelines.objectives.bidirectional_lm import BidirectionalLM
from tests import tiny

SHAPE = {"vocab_size": 61, "hidden_size": 16, "stack": "encoder", "separate_directions": True, "initializer_range": 0.8}


def elmo(**words: Any) -> FineryRnnForPreTraining:
    torch.manual_seed(1)
    return FineryRnnForPreTraining(FineryRnnConfig(**SHAPE, **words)).eval()


def batch(lengths: tuple[int, ...] = (7, 4)) -> dict[str, torch.Tensor]:
    generator = np.random.default_rng(0)
    rows = [{"input_ids": generator.integers(5, 60, length), "draw": at} for at, length in enumerate(lengths)]
    return BidirectionalLM().collate(tiny.tokenizer(), seed=0)(rows)


def test_the_labels_are_the_words_behind_and_then_the_words_before() -> None:
    given = batch()
    for ids, labels, length in zip(given["input_ids"].tolist(), given["labels"].tolist(), (7, 4), strict=True):
        filling = [IGNORED] * (7 - length)
        assert labels[:7] == [*ids[1:length], IGNORED, *filling]
        assert labels[7:] == [IGNORED, *ids[: length - 1], *filling]


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_no_direction_sees_what_it_is_to_name(cell: str) -> None:
    """By the gradient of each place's logits with respect to the words: nothing leaks through two layers."""
    model, given = elmo(cell=cell, num_hidden_layers=3), batch()
    words = model.model.embeddings(given["input_ids"]).detach().requires_grad_()
    logits = model(inputs_embeds=words, attention_mask=given["attention_mask"]).logits
    for row, length in enumerate((7, 4)):
        for place in range(length):
            for offset, seen in ((0, range(place + 1)), (7, range(place, length))):
                (slope,) = torch.autograd.grad(logits[row, offset + place].square().sum(), words, retain_graph=True)
                touched = slope.abs().sum(-1).nonzero().tolist()
                assert touched == [[row, other] for other in seen]


@torch.no_grad()
def test_it_is_two_of_torchs_own_networks_with_one_table_of_words() -> None:
    model, given = elmo(embedding_size=12), batch((6, 6))
    words = model.model.embeddings.weight
    said = []
    for index in range(2):
        lstm = nn.LSTM(12, 8, num_layers=2, batch_first=True)
        for depth, layer in enumerate(model.model.layers):
            for name, weight in layer.directions[index].rnn.named_parameters():
                getattr(lstm, name.replace("_l0", f"_l{depth}")).copy_(weight)
        inputs = words[given["input_ids"]]
        states = lstm(inputs.flip(1) if index else inputs)[0]
        said.append((states.flip(1) if index else states) @ model.projection.weight.T @ words.T)
    torch.testing.assert_close(
        model(**{k: given[k] for k in ("input_ids", "attention_mask")}).logits, torch.cat(said, 1)
    )
    ids = given["input_ids"]
    following = functional.cross_entropy(said[0][:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    before = functional.cross_entropy(said[1][:, 1:].flatten(0, 1), ids[:, :-1].flatten(), reduction="sum")
    (total,), _ = BidirectionalLM().loss(model, given)
    torch.testing.assert_close(total, following + before)
    torch.testing.assert_close(model(input_ids=ids, labels=ids).loss, (following + before) / (2 * 2 * 5))


def test_many_words_cost_no_logits_and_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = elmo(), batch()
    (whole,), _ = BidirectionalLM().loss(model, given)
    monkeypatch.setattr("pipelines.models.log_probabilities.LOGITS_KEPT", 8)
    wanted = given["labels"] != IGNORED
    outputs, said = distributions_of(model, {k: v for k, v in given.items() if k != "labels"}, wanted)
    assert outputs.logits.shape[-1] == 0
    torch.testing.assert_close(said.cross_entropy(given["labels"][wanted]), whole)


@torch.no_grad()
def test_padding_changes_nothing_and_every_layer_can_be_read() -> None:
    model, given = elmo(), batch()
    padded = model.model(given["input_ids"], given["attention_mask"], output_hidden_states=True)
    alone = model.model(given["input_ids"][1:, :4], output_hidden_states=True)
    assert [layer.shape[-1] for layer in padded.hidden_states] == [8, 16, 16]
    for whole, own in zip(padded.hidden_states, alone.hidden_states, strict=True):
        torch.testing.assert_close(whole[1:, :4], own)
    torch.testing.assert_close(padded.pooler_output[1:], alone.pooler_output)
    last = padded.hidden_states[-1]
    ends = torch.cat([last[[0, 1], [6, 3], :8], last[:, 0, 8:]], dim=-1)  # where each direction ended
    torch.testing.assert_close(padded.pooler_output, ends)


def test_dropped_weights_are_drawn_for_each_direction() -> None:
    model = elmo(weight_dropout_prob=0.5, hidden_dropout_prob=0.0, embedding_dropout_prob=0.0).train()
    given = batch()
    inputs = {key: given[key] for key in ("input_ids", "attention_mask")}
    torch.manual_seed(0)
    one = model(**inputs).logits
    assert not torch.allclose(one, model(**inputs).logits)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ({"model_type": "bert"}, "family rnn with stack: encoder and separate_directions: true"),
        ({"model_type": "finery-rnn"}, "stack: encoder with separate_directions: true"),
        ({"model_type": "finery-rnn", "stack": "encoder"}, "never see each other's words"),
    ],
)
def test_models_that_would_leak_are_refused(words: dict[str, Any], part: str) -> None:
    assert part in str(BidirectionalLM().misfit(words))


def test_a_head_on_mixed_directions_is_refused() -> None:
    with pytest.raises(ValueError, match="needs separate_directions: true"):
        FineryRnnForPreTraining(FineryRnnConfig(**{**SHAPE, "separate_directions": False}))
    with pytest.raises(ValueError, match="leave it out, or use stack: encoder"):
        FineryRnnConfig(**{**SHAPE, "stack": "decoder"})
