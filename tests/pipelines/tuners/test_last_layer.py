"""The head learns, and as many layers below it as asked; a head without weights of its own is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.core.errors import IncompatibleError
from pipelines.core.interfaces import Head
from pipelines.models import opening
from pipelines.tuners.last_layer import LastLayer
from tests import tiny

DIM, INNER = 32, 48
LAYER = 4 * (DIM * DIM + DIM) + 2 * DIM + (DIM * INNER + INNER) + (INNER * DIM + DIM) + 2 * DIM
POOLER = DIM * DIM + DIM


def trained(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize(
    ("family", "head"),
    [("bert", POOLER + DIM * 3 + 3), ("finery", POOLER + DIM * 3 + 3), ("distilbert", POOLER + DIM * 3 + 3)],
)
def test_the_count_is_the_head_and_whole_layers(family: str, head: int, layers: int) -> None:
    model = tiny.build(family, tiny.THREE)
    assert LastLayer(layers=layers).apply(model) is model
    assert trained(model) == head + layers * LAYER


def test_the_layers_are_the_last_ones() -> None:
    model = LastLayer(layers=1).apply(tiny.build("gpt2", tiny.TWO))
    awake = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert awake == {"score.weight", "transformer.ln_f.weight", "transformer.ln_f.bias"} | {
        name for name, _ in model.named_parameters() if name.startswith("transformer.h.1.")
    }


def test_more_layers_than_there_are_is_refused() -> None:
    with pytest.raises(
        IncompatibleError, match=r"last_layer.layers is 3, but the model has 2 layers; lower it, or use full"
    ):
        LastLayer(layers=3).apply(tiny.build("bert", tiny.TWO))
    ours = {"model_type": "finery", "family": "encoder", "num_hidden_layers": 2}
    assert (
        LastLayer(layers=3).misfit(ours, "sequence_classification")
        == "has layers 3, but the model has 2 layers; lower it, or use full"
    )
    assert LastLayer(layers=2).misfit(ours, "sequence_classification") is None


def test_a_head_that_is_the_embeddings_is_refused_before_and_after_loading() -> None:
    causal = Head("causal_lm")
    sentence = LastLayer().misfit({"model_type": "gpt2"}, "causal_lm")
    assert (
        sentence
        == "trains a head of its own, but a language model's is the matrix of its embeddings; set last_layer.layers to at least 1"
    )
    with pytest.raises(
        IncompatibleError,
        match=r"the head of GPT2LMHeadModel is the matrix of its embeddings; set last_layer.layers to at least 1",
    ):
        LastLayer().apply(tiny.build("gpt2", causal))
    assert LastLayer(layers=1).misfit({"model_type": "gpt2"}, "causal_lm") is None
    assert (
        trained(LastLayer(layers=1).apply(tiny.build("gpt2", causal))) == 12 * DIM * DIM + 13 * DIM + 2 * DIM
    )  # a GPT-2 layer, ln_f


def test_a_head_of_its_own_learns_in_a_language_model_too() -> None:
    words = {"tie_word_embeddings": False}
    assert LastLayer().misfit({"model_type": "gpt2", **words}, "causal_lm") is None
    model = LastLayer().apply(opening.build(tiny.shape("gpt2", **words), Head("causal_lm"), tiny.tokenizer(), 0))
    assert trained(model) == model.config.vocab_size * DIM
    assert LastLayer().misfit({"model_type": "bert"}, "masked_lm") is None
    assert (
        trained(LastLayer().apply(tiny.build("bert", tiny.MASKED)))
        == POOLER + 2 * DIM + tiny.build("bert", tiny.MASKED).config.vocab_size
    )
