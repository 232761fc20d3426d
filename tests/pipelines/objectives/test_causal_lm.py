"""Causal LM: every token but the first is asked once, at the position before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import IGNORED, Head
from pipelines.models import opening
from pipelines.objectives.causal_lm import CausalLM
from tests import tiny

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def rows(lengths: list[int], seed: int = 0) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    return [
        {"input_ids": generator.integers(5, 60, length).astype(np.int32), "draw": draw}
        for draw, length in enumerate(lengths)
    ]


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_each_position_is_asked_for_the_token_that_follows(lengths: list[int]) -> None:
    examples = rows(lengths)
    batch = CausalLM().collate(tiny.tokenizer(), seed=0)(examples)
    for number, example in enumerate(examples):
        ids = example["input_ids"].tolist()
        filling = max(lengths) - len(ids)
        assert batch["input_ids"][number].tolist() == ids + [tiny.tokenizer().pad_token_id] * filling
        assert batch["labels"][number].tolist() == [*ids[1:], IGNORED] + [IGNORED] * filling
        assert batch["attention_mask"][number].tolist() == [1] * len(ids) + [0] * filling


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_loss_is_that_of_transformers(family: str) -> None:
    model = build(tiny.shape("gpt2") if family == "gpt2" else {"model_type": "llama", **SIZES})
    batch = CausalLM().collate(tiny.tokenizer(), seed=0)(rows([9, 5, 7]))
    (total,), _ = CausalLM().loss(model, batch)
    own = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
    mean = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=own).loss
    torch.testing.assert_close(total / (batch["labels"] != IGNORED).sum(), mean)


def build(words: dict[str, Any]) -> Any:
    return opening.build(words, Head("causal_lm"), tiny.tokenizer(), seed=0).eval()


def test_a_tokenizer_without_padding_serves_equal_lengths_only() -> None:
    class Bare:
        pad_token_id = None

    collate = CausalLM().collate(Bare(), seed=0)
    assert collate(rows([4, 4]))["labels"].shape == (2, 4)
    with pytest.raises(ModelError, match="no padding token"):
        collate(rows([4, 3]))


@pytest.mark.parametrize(
    ("architecture", "sentence"),
    [
        ({"model_type": "finery", "family": "encoder"}, "family decoder, not encoder"),
        ({"model_type": "finery"}, "family decoder, not encoder"),
        ({"model_type": "bert"}, "bert sees both ways; set is_decoder: true, or use a decoder"),
        ({"model_type": "xlnet"}, "xlnet sees both ways; use a decoder"),
        ({"model_type": "bert", "is_decoder": True}, None),
        ({"model_type": "finery", "family": "decoder"}, None),
        ({"model_type": "gpt2"}, None),
        ({"model_type": "bart"}, None),
    ],
)
def test_models_that_see_ahead_are_refused(architecture: dict[str, Any], sentence: str | None) -> None:
    found = CausalLM().misfit(architecture)
    assert (found is None) == (sentence is None)
    assert sentence is None or sentence in found


@pytest.mark.parametrize(
    "words", [{"model_type": "bert", "is_decoder": True}, {"model_type": "bert"}, {"model_type": "xlnet"}]
)
def test_what_is_refused_does_see_ahead(words: dict[str, Any]) -> None:
    sizes = {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 24} if words["model_type"] == "xlnet" else SIZES
    model = build(words | sizes)
    ids = torch.arange(5, 15)[None]
    changed = ids.clone()
    changed[0, -1] = 40
    with torch.no_grad():
        same = torch.equal(model(input_ids=ids).logits[:, :-1], model(input_ids=changed).logits[:, :-1])
    assert same == (CausalLM().misfit(words) is None)
