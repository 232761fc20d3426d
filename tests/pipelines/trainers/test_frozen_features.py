"""Frozen layers asked once: the same losses and weights as asking them in each step, and whose features are kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.core.errors import Stopped
from pipelines.core.interfaces import Context
from pipelines.data.encoding import collate
from pipelines.objectives.losses import classification_loss
from pipelines.trainers import frozen_features, trainer
from pipelines.tuners.full import Full
from pipelines.tuners.last_layer import LastLayer
from pipelines.tuners.lora import LoRA
from pipelines.tuners.prompt import Prompt
from tests import tiny
from tests.pipelines.trainers.test_trainer import examples, weights

ARGUMENTS = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 4,
    "learning_rate": 5e-2,
    "optim": "sgd",  # which makes no whole steps of rounding
    "logging_steps": 1,
    "save_strategy": "no",
}
HEAD, TOP = LastLayer(), LastLayer(layers=1)


def fitted(
    place: Context, once: bool, family: str = "bert", tuner: Any = HEAD, loss: Any = classification_loss, **more: Any
) -> tuple[Any, dict[str, float]]:
    model = tuner.apply(tiny.build(family, tiny.THREE, dropout=more.pop("dropout", False)))
    return trainer.fit(
        place,
        model,
        tiny.tokenizer(),
        examples("classification"),
        collate=partial(collate, tiny.tokenizer()),
        loss=loss,
        arguments=ARGUMENTS | more.pop("arguments", {}),
        tuner=tuner,
        frozen_once=once,
        **more,
    )


def kept(place: Context) -> list[Any]:
    return sorted(place.cache.glob("features-*.npy"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many layers of BERT were asked, at each pass through one."""
    from transformers.models.bert.modeling_bert import BertLayer

    passes: list[int] = []
    whole = BertLayer.forward

    def counting(self: Any, *given: Any, **words: Any) -> Any:
        passes.append(1)
        return whole(self, *given, **words)

    monkeypatch.setattr(BertLayer, "forward", counting)
    return passes


@pytest.mark.parametrize("tuner", [HEAD, TOP], ids=["head", "layer"])
@pytest.mark.parametrize("family", ["bert", "finery", "gpt2", "distilbert", "llama", "modernbert"])
def test_losses_and_weights_are_those_of_asking_in_each_step(
    family: str, tuner: Any, context: Callable[..., Context], events: Any
):
    (plain, metrics), (once, same) = (fitted(context(str(way)), way, family, tuner) for way in (False, True))
    assert len(kept(context("True"))) == 1
    expected = weights(plain)
    for name, weight in weights(once).items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    assert same["train_loss"] == pytest.approx(metrics["train_loss"], abs=1e-5)
    assert all("forward" not in vars(module) for module in once.modules())  # layers compute again
    inputs = tiny.batch()
    assert torch.allclose(tiny.logits(once, inputs), tiny.logits(plain, inputs), atol=1e-4)


def test_frozen_layers_are_asked_once_for_all_epochs_and_runs(context: Callable[..., Context], asked: list[int]):
    fitted(context("first"), True)
    first = len(asked)
    fitted(context("second"), True, arguments={"learning_rate": 1e-3, "num_train_epochs": 9})
    again = len(asked) - first
    assert again < first  # the look at both ways, no layer in a step
    assert again <= 6
    fitted(context("plain"), False)
    assert len(asked) - first - again == 2 * 12  # two layers, twelve steps
    assert len(kept(context("first"))) == 1


def test_dropout_of_frozen_layers_is_left_out_and_that_of_the_rest_stays(context: Callable[..., Context]):
    (once, _), (again, _) = (fitted(context(name), True, dropout=True) for name in ("one", "two"))
    plain, _ = fitted(context("plain"), False, dropout=True)
    head = [weights(model)["classifier.weight"] for model in (once, again, plain)]
    assert torch.equal(head[0], head[1])
    assert not torch.allclose(head[0], head[2], atol=1e-4)


def test_what_it_depends_on_names_the_file(context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch):
    fitted(context("one"), True)
    build = tiny.build
    monkeypatch.setattr(tiny, "build", lambda *given, **words: build(*given, seed=5, **words))  # other weights
    fitted(context("two"), True)
    fitted(context("three", precision="bf16"), True)
    assert len(kept(context("one"))) == 3


@pytest.mark.parametrize(
    ("family", "tuner"),
    [
        ("bert", Full()),
        ("bert", LoRA(r=2)),
        ("bert", Prompt(num_virtual_tokens=3)),
        ("bert", Full(gradual_unfreezing=True)),
        ("t5", TOP),
    ],
    ids=["full", "lora", "prompt", "gradual", "two stacks"],
)
def test_elsewhere_nothing_is_kept(family: str, tuner: Any, context: Callable[..., Context]):
    if family == "t5":
        model = tuner.apply(tiny.build(family, tiny.THREE))
        assert frozen_features.frozen_layers(model) is None
        return
    place = context()
    fitted(place, True, family, tuner, arguments={"num_train_epochs": 1})
    assert not kept(place)


def test_fewer_steps_than_examples_ask_in_each_step(context: Callable[..., Context]):
    place = context()
    fitted(place, True, arguments={"max_steps": 2})
    assert not kept(place)


def test_a_model_that_answers_otherwise_to_features_is_asked_in_each_step(context: Callable[..., Context]):
    """ALBERT's one layer is asked again and again: what it answers first is not what the head reads."""
    place = context()
    fitted(place, True, "albert", arguments={"num_train_epochs": 1})
    assert frozen_features.frozen_layers(HEAD.apply(tiny.build("albert", tiny.THREE))) is not None
    assert not kept(place)


def test_a_stop_resumes_to_the_bit_and_rows_set_aside_are_scored(context: Callable[..., Context]):
    more = {"selection": examples("classification", 6), "score": lambda logits, labels: {"mean": float(logits.mean())}}
    each = {"arguments": {"eval_strategy": "epoch", "save_strategy": "epoch"}}
    whole, metrics = fitted(context("whole"), True, **more, **each)
    assert "eval_mean" in metrics
    first, calls = context("stopped"), []

    def stopping(model: Any, inputs: Any) -> Any:
        calls.append(1)
        first.stop.requested = len(calls) >= 8
        return classification_loss(model, inputs)

    with pytest.raises(Stopped):
        fitted(first, True, loss=stopping, **more, **each)
    resumed, after = fitted(context("stopped"), True, **more, **each)
    expected = weights(whole)
    assert all(torch.equal(weight, expected[name]) for name, weight in weights(resumed).items())
    assert after["eval_mean"] == metrics["eval_mean"]
    _, other = fitted(context("plain"), False, **more, **each)
    assert other["eval_mean"] == pytest.approx(metrics["eval_mean"], abs=1e-5)


def test_features_lie_where_the_tokens_lie():
    together = frozen_features.with_features(partial(collate, tiny.tokenizer()))
    rows = [{"input_ids": [5, 6, 7]}, {"input_ids": [8]}]
    states = [np.arange(6, dtype=np.float32).reshape(3, 2), np.full((1, 2), 9, np.float32)]
    batch = together([{**row, frozen_features.FEATURES: own} for row, own in zip(rows, states, strict=True)])
    laid = batch[frozen_features.FEATURES]
    assert laid.shape == (2, 3, 2)
    assert torch.equal(laid[0], torch.from_numpy(states[0]))
    assert laid[1].tolist() == [[9, 9], [0, 0], [0, 0]]
