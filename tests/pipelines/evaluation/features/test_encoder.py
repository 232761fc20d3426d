"""Hidden states as features: which layer, how they are pooled, and what they are remembered by."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.architectures import FineryRnnConfig, FineryRnnForPreTraining
from pipelines.core.errors import IncompatibleError, RecipeError
from pipelines.core.load import loads
from pipelines.evaluation.features.base import Reading
from pipelines.evaluation.features.encoder import EncoderFeatures

TEXTS = ["the cat runs", "a good film , very good", "dull"]


@pytest.fixture
def states(running: Any, classifier: Callable[..., Any], tokenizer: Any) -> Callable[..., Any]:
    """`states(model=None, **words)`: the features of a model."""

    def opened(model: Any = None, **words: Any) -> Any:
        model = classifier() if model is None else model
        running.open_model = lambda head, stage_id=None, trained_head=False: model
        running.recipe = SimpleNamespace(model=SimpleNamespace(architecture=None))
        return EncoderFeatures(**words).open(Reading(running, "model", 16, {"batch_size": 2}), ())

    return opened


@pytest.fixture
def hidden(classifier: Callable[..., Any], tokenizer: Any) -> list[list[Any]]:
    """Of each text every hidden state (tokens, width), read alone."""
    model = classifier().bert.eval()
    with torch.no_grad():
        return [
            [layer[0].numpy() for layer in model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)[2]]
            for text in TEXTS
        ]


@pytest.mark.parametrize(
    ("pooling", "pool"), [("mean", lambda x: x.mean(0)), ("first", lambda x: x[0]), ("last", lambda x: x[-1])]
)
@pytest.mark.parametrize("layer", [1, 2, -1])
def test_a_layer_is_pooled_over_the_texts_own_tokens(
    states: Any, hidden: Any, pooling: str, pool: Any, layer: int
) -> None:
    got = states(pooling=pooling, layer=layer).vectors("train", TEXTS)
    assert got.shape == (1, 3, 16)
    np.testing.assert_allclose(got[0], [pool(layers[layer]) for layers in hidden], atol=1e-5)


def test_mix_gives_every_layer(states: Any, hidden: Any) -> None:
    opened = states(layer="mix")
    got = opened.vectors("train", TEXTS)
    np.testing.assert_allclose(
        got, np.array([[x.mean(0) for x in layers] for layers in hidden]).swapaxes(0, 1), atol=1e-5
    )
    assert opened.details() == {"model": "model", "cut": {"train": 0.0}, "layers": 2}


def test_layer_0_is_a_word_wherever_it_stands(states: Any, classifier: Any, tokenizer: Any) -> None:
    """Without positions: other orders of the same words are the same."""
    got = states(layer=0).vectors("train", ["cat the runs", "the cat runs", "the cat"])[0]
    np.testing.assert_allclose(got[0], got[1], atol=1e-6)
    table = classifier().bert.embeddings.word_embeddings.weight.detach().numpy()
    np.testing.assert_allclose(got[2], table[tokenizer("the cat")["input_ids"]].mean(0), atol=1e-6)


def test_texts_are_cut_and_it_is_said_how_many(states: Any) -> None:
    opened = states()
    opened.vectors("train", ["good " * 40, "dull"])
    assert opened.details()["cut"] == {"train": 0.5}


def test_features_are_remembered_by_weights_texts_and_settings(
    states: Any, running: Any, classifier: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = classifier()
    first = states(model).vectors("train", TEXTS)
    asked: list[Any] = []
    model.bert.register_forward_pre_hook(lambda *given: asked.append(given))
    opened = states(model)
    assert np.array_equal(opened.vectors("validation", TEXTS), first)
    assert not asked
    assert opened.details()["cut"] == {"validation": 0.0}
    states(model, pooling="first").vectors("train", TEXTS)
    states(model).vectors("train", TEXTS[::-1])
    assert len(asked) == 4  # two batches each
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.bias[0] += 1  # all of them would be undone by the norm that follows
    assert not np.allclose(states(model).vectors("train", TEXTS), first)
    for file in running.cache.glob("features-*.npz"):
        file.write_bytes(b"broken")
    states(model).vectors("train", TEXTS)


def test_a_bidirectional_language_model_gives_elmos_layers(states: Any, tokenizer: Any) -> None:
    config = FineryRnnConfig(vocab_size=len(tokenizer), hidden_size=16, stack="encoder", separate_directions=True)
    model = FineryRnnForPreTraining(config)
    got = states(model, layer="mix").vectors("train", TEXTS)
    assert got.shape == (3, 3, 16)
    np.testing.assert_allclose(got[0, :, :8], got[0, :, 8:])  # embeddings stand there twice, once a direction
    assert states(model, layer=0).vectors("train", TEXTS).shape == (1, 3, 8)


def test_a_layer_that_is_not_there_is_refused(states: Any) -> None:
    with pytest.raises(IncompatibleError, match=r"features\.layer is 3, but the model has 2 layers"):
        states(layer=3).vectors("train", TEXTS)
    recipe = (
        "name: t\nmodel: {{architecture: {{preset: bert-tiny}}}}\n"
        "stages: [{{stage: features, task: glue/sst2, features: {{name: encoder, layer: {layer}}}}}]"
    )
    with pytest.raises(RecipeError, match="is 9, but the model has 2 layers; 0 to 2, -1 or mix"):
        loads(recipe.format(layer=9))
    with pytest.raises(RecipeError, match='is "top", must be the number of a layer'):
        loads(recipe.format(layer="top"))


def test_an_encoder_decoder_is_read_at_its_encoder(states: Any, tokenizer: Any) -> None:
    from transformers import T5Config, T5ForSequenceClassification

    words = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": len(tokenizer)}
    assert states(T5ForSequenceClassification(T5Config(**words)), layer="mix").vectors("train", TEXTS).shape == (
        3,
        3,
        16,
    )
    plain = FineryRnnConfig(vocab_size=len(tokenizer), hidden_size=16)
    from pipelines.architectures import FineryRnnForConditionalGeneration

    model = FineryRnnForConditionalGeneration(plain)
    assert states(model).vectors("train", TEXTS).shape == (1, 3, 16)
    with pytest.raises(IncompatibleError, match="tells its last layer's states alone; use layer: -1"):
        states(model, layer="mix").vectors("train", TEXTS)
